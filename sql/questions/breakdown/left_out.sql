-- Incomplete steps, which means leave out, by phase and reason.
-- grain: phase, reason
-- parameters: run_id, source
SELECT phase, incomplete_reason AS reason, count(*) AS steps
FROM steps
WHERE run_id = $run_id AND source = $source AND NOT is_complete
GROUP BY ALL
ORDER BY ALL
