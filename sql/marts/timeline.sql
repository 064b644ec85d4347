-- The closing line of the books of each device: exposed + idle + unknown = end - start, exactly, steps or no steps.
-- Exposed is summed over activities, idle over the gaps between stretches of work, so that neither is a remainder.
-- grain: trace_id, device
WITH booked AS (
    SELECT
        run_id, source, trace_id, rank, device,
        min(start_ns) AS start_ns, max(start_ns + dur_ns) AS end_ns, sum(exposed_ns)::BIGINT AS exposed_ns,
        sum(dur_ns)::BIGINT AS busy_ns, count(*) AS activities, count(step) AS activities_in_steps
    FROM activity
    GROUP BY ALL
),

island AS (
    SELECT trace_id, device, start_ns, end_ns FROM int_island WHERE level = 3
    UNION ALL
    -- Activities without duration that stand alone before or behind all others bound the time line too.
    SELECT booked.trace_id, booked.device, instant.at_ns AS start_ns, instant.at_ns AS end_ns
    FROM booked
    CROSS JOIN unnest([booked.start_ns, booked.end_ns]) AS instant (at_ns)
),

gap AS (
    SELECT
        trace_id, device,
        start_ns - max(end_ns) OVER (
            PARTITION BY trace_id, device ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS idle_ns
    FROM island
),

idle AS (
    SELECT trace_id, device, sum(greatest(idle_ns, 0))::BIGINT AS idle_ns FROM gap GROUP BY trace_id, device
)

SELECT booked.*, coalesce(idle.idle_ns, 0) AS idle_ns, 0 AS unknown_ns
FROM booked
INNER JOIN idle USING (trace_id, device)
