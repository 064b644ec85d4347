-- Verdicts of the checks of a run, by source.
-- grain: verdict
-- parameters: run_id
SELECT DISTINCT verdict
FROM runs
WHERE run_id = $run_id
