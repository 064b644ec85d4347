-- Exposed time of each activity: its own segment less what higher owner classes (compute before
-- communication before copies) cover of it, in ns. The sum over a device is the union of all its activities,
-- to the nanosecond.
-- grain: trace_id, activity_id
WITH segment AS (SELECT * FROM int_owner_segment),

busy AS (SELECT * FROM int_busy_interval),

edge AS (
    SELECT
        trace_id,
        activity_id,
        device,
        owner - 1 AS level,
        unnest([own_ns, end_ns]) AS at_ns,
        unnest([-1, 1]) AS sign
    FROM segment
    WHERE owner > 1 AND end_ns > own_ns
),

hidden AS (
    SELECT trace_id, activity_id, sum(sign * covered_ns)::BIGINT AS hidden_ns
    FROM covered_at('edge', 'busy')
    GROUP BY trace_id, activity_id
),

exposed AS (
    SELECT
        segment.trace_id,
        segment.activity_id,
        segment.device,
        segment.owner,
        segment.own_ns,
        segment.end_ns,
        segment.end_ns - segment.own_ns - coalesce(hidden.hidden_ns, 0) AS exposed_ns
    FROM segment
    LEFT JOIN hidden USING (trace_id, activity_id)
)

SELECT * FROM exposed
