-- Steps of one source of a run by phase, complete or not; unmarked: steps that no annotation covers.
-- grain: phase
-- parameters: run_id, source
SELECT
    phase,
    count(DISTINCT row(trace_id, step)) AS steps,
    count(DISTINCT trace_id) AS ranks,
    count(*) FILTER (WHERE label IS NULL) AS unmarked
FROM steps
WHERE run_id = $run_id AND source = $source
GROUP BY phase
