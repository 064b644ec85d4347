-- Intervals without a gap of all activities whose owner class is at most `level`, with the time covered
-- before each, in ns. The macro covered_at looks up the covered time before any instant.
-- grain: trace_id, device, level, start_ns
WITH level AS (SELECT unnest([1, 2, 3]) AS level),

activity AS (
    SELECT own.trace_id, own.device, level.level, own.activity_id, own.start_ns, own.end_ns
    FROM int_owner_segment AS own
    INNER JOIN level ON own.owner <= level.level
    WHERE own.end_ns > own.start_ns
),

earlier AS (
    SELECT
        trace_id,
        device,
        level,
        start_ns,
        max(end_ns) OVER (
            PARTITION BY trace_id, device, level ORDER BY start_ns, activity_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS covered_until_ns
    FROM activity
),

-- An interval begins where all earlier activities have ended, and ends where all activities that started
-- before the next interval have ended.
begun AS (SELECT * FROM earlier WHERE covered_until_ns IS NULL OR start_ns > covered_until_ns),

last_end AS (
    SELECT trace_id, device, level, max(end_ns) AS end_ns FROM activity GROUP BY trace_id, device, level
)

SELECT
    begun.trace_id,
    begun.device,
    begun.level,
    begun.start_ns,
    coalesce(lead(begun.covered_until_ns) OVER in_order, last_end.end_ns) AS end_ns,
    -- Covered time is the time since the first interval, less the gaps.
    (
        begun.start_ns - first_value(begun.start_ns) OVER in_order
        - sum(coalesce(begun.start_ns - begun.covered_until_ns, 0)) OVER in_order
    )::BIGINT AS covered_ns
FROM begun
INNER JOIN last_end USING (trace_id, device, level)
WINDOW
    in_order AS (
        PARTITION BY begun.trace_id, begun.device, begun.level
        ORDER BY begun.start_ns ROWS UNBOUNDED PRECEDING
    )
