-- Time covered by any activity on the device, up to each step's start, end and wall end.
-- grain: trace_id, device, step
WITH instant AS (
    SELECT trace_id, device, step, 'start' AS which, start_ns AS at_ns FROM int_step_window
    UNION ALL
    SELECT trace_id, device, step, 'end' AS which, end_ns AS at_ns FROM int_step_window
    UNION ALL
    SELECT trace_id, device, step, 'next' AS which, next_ns AS at_ns FROM int_step_window WHERE next_ns IS NOT NULL
),

union_island AS (SELECT * FROM int_busy_interval WHERE level = 3),

covered AS (
    SELECT
        instant.*,
        coalesce(island.covered_ns + least(instant.at_ns, island.end_ns) - island.start_ns, 0) AS covered_ns
    FROM instant
    ASOF LEFT JOIN union_island AS island
        ON instant.trace_id = island.trace_id AND instant.device = island.device AND instant.at_ns >= island.start_ns
)

SELECT
    trace_id,
    device,
    step,
    max(covered_ns) FILTER (WHERE which = 'start') AS start_covered_ns,
    max(covered_ns) FILTER (WHERE which = 'end') AS end_covered_ns,
    max(covered_ns) FILTER (WHERE which = 'next') AS next_covered_ns
FROM covered
GROUP BY trace_id, device, step
