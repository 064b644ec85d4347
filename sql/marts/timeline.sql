-- The balance of each device: exposed + idle + unknown = end - start, exactly, with or without steps, in ns.
-- Exposed is summed over activities, idle over the gaps between busy intervals, so neither is a remainder.
-- Where a step lost records it is unknown whether the device was idle: gaps in it, and between the previous
-- step and it, are unknown.
-- grain: trace_id, device
WITH booked AS (
    SELECT
        run_id, source, trace_id, rank, device,
        min(start_ns) AS start_ns, max(start_ns + dur_ns) AS end_ns, sum(exposed_ns)::BIGINT AS exposed_ns,
        sum(dur_ns)::BIGINT AS busy_ns, count(*) AS activities, count(step) AS activities_in_steps
    FROM activity
    GROUP BY ALL
),

busy_or_edge AS (
    SELECT trace_id, device, start_ns, end_ns FROM int_busy_interval WHERE level = 3
    UNION ALL
    -- Activities without duration before or after all others bound the timeline too.
    SELECT booked.trace_id, booked.device, instant.at_ns AS start_ns, instant.at_ns AS end_ns
    FROM booked
    CROSS JOIN unnest([booked.start_ns, booked.end_ns]) AS instant (at_ns)
),

gap AS (
    SELECT
        trace_id, device,
        start_ns - max(end_ns) OVER (
            PARTITION BY trace_id, device
            ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS idle_ns
    FROM busy_or_edge
),

idle AS (
    SELECT trace_id, device, sum(greatest(idle_ns, 0))::BIGINT AS idle_ns FROM gap GROUP BY trace_id, device
),

window_of AS (
    SELECT
        step.trace_id,
        step.device,
        lost.step IS NOT NULL AS is_lost,
        least(step.start_ns, coalesce(max(step.end_ns) OVER before_it, step.start_ns)) AS from_ns,
        coalesce(step.next_ns, step.end_ns) AS until_ns,
        coalesce(lag(lost.step) OVER in_order IS NOT NULL, FALSE) AS is_after_lost,
        step.start_ns
    FROM int_step_window AS step
    LEFT JOIN int_step_lost AS lost USING (trace_id, device, step)
    WINDOW
        in_order AS (PARTITION BY step.trace_id, step.device ORDER BY step.start_ns, step.step),
        before_it AS (
            PARTITION BY step.trace_id, step.device
            ORDER BY step.start_ns, step.step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
),

lost_edge AS (
    SELECT
        trace_id,
        device,
        3 AS level,
        unnest([CASE WHEN is_after_lost THEN start_ns ELSE from_ns END, until_ns]) AS at_ns,
        unnest([-1, 1]) AS sign
    FROM window_of
    WHERE is_lost
),

busy AS (SELECT * FROM int_busy_interval WHERE level = 3),

-- Idle time before an instant is the instant less the time covered before it.
lost_idle AS (
    SELECT trace_id, device, sum(sign * (at_ns - covered_ns))::BIGINT AS unknown_ns
    FROM covered_at('lost_edge', 'busy')
    GROUP BY trace_id, device
)

SELECT
    booked.*,
    coalesce(idle.idle_ns, 0) - coalesce(lost_idle.unknown_ns, 0) AS idle_ns,
    coalesce(lost_idle.unknown_ns, 0) AS unknown_ns
FROM booked
INNER JOIN idle USING (trace_id, device)
LEFT JOIN lost_idle USING (trace_id, device)
