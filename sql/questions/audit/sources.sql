-- Sources of a run that have complete steps.
-- grain: source
-- parameters: run_id
SELECT DISTINCT source
FROM steps
WHERE run_id = $run_id AND is_complete
ORDER BY source
