-- The whole capture by row of the table, in steps or not. Units: ns; busy is summed durations, exposed counts
-- each instant once.
-- grain: rollup
-- parameters: run_id, source
SELECT rollup, count(*) AS calls, sum(dur_ns)::BIGINT AS busy_ns, sum(exposed_ns)::BIGINT AS exposed_ns
FROM activity
WHERE run_id = $run_id AND source = $source
GROUP BY rollup
ORDER BY busy_ns DESC
