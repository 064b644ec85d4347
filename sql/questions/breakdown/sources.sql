-- The facts of a run by source, with the verdict of its checks.
-- grain: source
-- parameters: run_id
SELECT * FROM runs
WHERE run_id = $run_id
ORDER BY source
