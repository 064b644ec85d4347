-- Exposed time that a step's own activities spend inside its own wall (its first kernel to the next step's
-- first kernel), in ns. Only activities that cross the wall need the covered time; the others are entirely
-- inside or outside.
-- grain: trace_id, device, step
WITH activity AS (
    SELECT exposed.*, placed.step, step.start_ns AS wall_start_ns, step.next_ns AS wall_end_ns
    FROM int_exposed AS exposed
    INNER JOIN int_activity_step AS placed USING (trace_id, activity_id)
    INNER JOIN int_step_window AS step
        ON exposed.trace_id = step.trace_id AND exposed.device = step.device AND placed.step = step.step
    WHERE exposed.exposed_ns > 0 AND step.next_ns IS NOT NULL
),

whole AS (
    SELECT trace_id, device, step, exposed_ns AS inside_ns
    FROM activity
    WHERE own_ns >= wall_start_ns AND end_ns <= wall_end_ns
),

part AS (
    SELECT *, greatest(own_ns, wall_start_ns) AS from_ns, least(end_ns, wall_end_ns) AS to_ns
    FROM activity
    WHERE (own_ns < wall_start_ns OR end_ns > wall_end_ns) AND own_ns < wall_end_ns AND end_ns > wall_start_ns
),

edge AS (
    SELECT
        trace_id,
        activity_id,
        device,
        owner - 1 AS level,
        unnest([from_ns, to_ns]) AS at_ns,
        unnest([-1, 1]) AS sign
    FROM part
),

busy AS (SELECT * FROM int_busy_interval),

hidden AS (
    SELECT trace_id, activity_id, sum(sign * covered_ns)::BIGINT AS hidden_ns
    FROM covered_at('edge', 'busy')
    GROUP BY trace_id, activity_id
),

partial AS (
    SELECT part.trace_id, part.device, part.step, part.to_ns - part.from_ns - hidden.hidden_ns AS inside_ns
    FROM part
    INNER JOIN hidden USING (trace_id, activity_id)
),

either AS (
    SELECT * FROM whole
    UNION ALL
    SELECT * FROM partial
)

SELECT trace_id, device, step, sum(inside_ns)::BIGINT AS inside_ns
FROM either
GROUP BY trace_id, device, step
