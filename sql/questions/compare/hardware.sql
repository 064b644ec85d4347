-- The GPU and the ranks of a source of a run.
-- grain: one row
-- parameters: run_id, source
SELECT gpu_name, ranks_expected, ranks
FROM run_facts
WHERE run_id = $run_id AND source = $source
