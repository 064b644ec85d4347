-- GPU activities that belong to no step, by reason. Units: ns of summed durations.
-- grain: reason
-- parameters: run_id, source
SELECT no_step_reason AS reason, count(*) AS activities, sum(dur_ns)::BIGINT AS busy_ns
FROM activity
WHERE run_id = $run_id AND source = $source AND step IS NULL
GROUP BY ALL
ORDER BY ALL
