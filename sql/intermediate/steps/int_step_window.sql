-- The timeline of each step on each device: from its first kernel (input copies run early, inside the
-- previous step) to its last end, and to the first kernel of the next step there.
-- grain: trace_id, device, step
WITH activity AS (
    SELECT
        rule.trace_id, rule.device, placed.step, rule.kind, rule.start_ns, rule.end_ns, rule.dur_ns,
        rule.correlation, rule.is_graph, rule.launch_ns,
        placed.placed_by
    FROM int_activity AS rule
    INNER JOIN int_activity_step AS placed USING (trace_id, activity_id)
    WHERE placed.step IS NOT NULL
),

by_step AS (
    SELECT
        trace_id,
        device,
        step,
        coalesce(min(start_ns) FILTER (WHERE kind = 'kernel'), min(start_ns)) AS start_ns,
        max(end_ns) AS end_ns,
        sum(dur_ns)::BIGINT AS busy_ns,
        count(*) AS activities,
        count(*) FILTER (WHERE kind = 'kernel') AS kernels,
        count(*) FILTER (WHERE placed_by <> 'launch_same_thread') AS placed_by_time,
        count(DISTINCT correlation) FILTER (WHERE is_graph) AS graph_launches
    FROM activity
    GROUP BY trace_id, device, step
),

first_of_launch AS (
    SELECT trace_id, device, step, correlation, min(start_ns) - any_value(launch_ns) AS lag_ns
    FROM activity
    WHERE launch_ns IS NOT NULL
    GROUP BY trace_id, device, step, correlation
),

lag AS (
    SELECT trace_id, device, step, quantile_disc(lag_ns, 0.5) AS launch_lag_p50_ns
    FROM first_of_launch
    GROUP BY trace_id, device, step
)

SELECT
    by_step.*,
    lag.launch_lag_p50_ns,
    lead(by_step.start_ns)
        OVER (PARTITION BY by_step.trace_id, by_step.device ORDER BY by_step.start_ns, by_step.step)
        AS next_ns
FROM by_step
LEFT JOIN lag USING (trace_id, device, step)
