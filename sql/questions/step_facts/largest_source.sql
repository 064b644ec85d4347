-- The source with the most complete steps of a phase; no row where there is none.
-- grain: one row
-- parameters: run_id, phase
SELECT source, count(*) AS steps
FROM steps
WHERE run_id = $run_id AND phase = $phase AND is_complete
GROUP BY source
ORDER BY steps DESC, source ASC
LIMIT 1
