-- Traces of a source with their rank, and their pipeline rank where the name of the file has one.
-- grain: trace_id
-- parameters: run_id, source
SELECT trace_id, pp_rank, rank
FROM raw.trace
WHERE run_id = $run_id AND source = $source
ORDER BY ALL
