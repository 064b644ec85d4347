-- The GPU that a source of a run names.
-- grain: one row
-- parameters: run_id, source
SELECT min(gpu_name) AS gpu_name
FROM run_facts
WHERE run_id = $run_id AND source = $source
