-- Calls that launched GPU work, with the number of activities that each launched.
-- grain: trace_id, correlation
SELECT
    trace_id,
    correlation,
    any_value(launch_ns) AS launch_ns,
    any_value(pid) AS pid,
    any_value(tid) AS tid,
    any_value(is_graph) AS is_graph,
    count(*) AS activities
FROM int_activity_launch
WHERE launch_ns IS NOT NULL
GROUP BY trace_id, correlation
