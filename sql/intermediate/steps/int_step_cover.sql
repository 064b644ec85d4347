-- Time covered by any activity on the device, up to each step's start, end and wall end, in ns.
-- grain: trace_id, device, step
WITH step AS (SELECT * FROM int_step_window),

busy AS (SELECT * FROM int_busy_interval WHERE level = 3),

edge AS (
    SELECT
        trace_id,
        device,
        step,
        3 AS level,
        unnest(['start', 'end', 'next']) AS edge,
        unnest([start_ns, end_ns, next_ns]) AS at_ns
    FROM step
),

known_edge AS (SELECT * FROM edge WHERE at_ns IS NOT NULL),

cover AS (
    SELECT
        trace_id,
        device,
        step,
        max(covered_ns) FILTER (WHERE edge = 'start') AS start_covered_ns,
        max(covered_ns) FILTER (WHERE edge = 'end') AS end_covered_ns,
        max(covered_ns) FILTER (WHERE edge = 'next') AS next_covered_ns
    FROM covered_at('known_edge', 'busy')
    GROUP BY trace_id, device, step
)

SELECT * FROM cover
