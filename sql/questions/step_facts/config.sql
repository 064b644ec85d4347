-- What the user described of a run; no row where nothing is.
-- grain: run_id
-- parameters: run_id
SELECT * FROM run_config
WHERE run_id = $run_id
