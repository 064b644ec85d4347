-- Complete steps of a run by source and phase.
-- grain: source, phase
-- parameters: run_id
SELECT source, phase, count(*) AS steps
FROM steps
WHERE run_id = $run_id AND is_complete AND phase <> 'empty'
GROUP BY ALL
