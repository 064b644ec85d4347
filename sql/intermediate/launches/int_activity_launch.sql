-- Each activity with the call that launched it and the operators around that call, where the trace has them.
-- grain: trace_id, activity_id
SELECT
    activity.*,
    launch.start_ns AS launch_ns,
    launch.pid,
    launch.tid,
    launch.name AS launch_name,
    coalesce(launch.name ILIKE '%GraphLaunch%', false) AS is_graph,
    operator.op,
    operator.ops
FROM stg_activity AS activity
LEFT JOIN stg_launch AS launch USING (trace_id, correlation)
LEFT JOIN int_launch_op AS operator USING (trace_id, correlation)
