-- Stretches without a gap of all activities whose owner class is at most `level`, with the time covered before each.
-- Covered time up to any instant is then one ASOF lookup away.
-- grain: trace_id, device, level, start_ns
WITH level AS (SELECT unnest([1, 2, 3]) AS level),

activity AS (
    SELECT own.trace_id, own.device, level.level, own.activity_id, own.start_ns, own.end_ns
    FROM int_own AS own
    INNER JOIN level ON own.owner <= level.level
    WHERE own.end_ns > own.start_ns
),

begun AS (
    SELECT
        *,
        coalesce(
            start_ns > max(end_ns) OVER (
                PARTITION BY trace_id, device, level ORDER BY start_ns, activity_id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ),
            true
        ) AS is_first
    FROM activity
),

numbered AS (
    SELECT
        *,
        sum(is_first::BIGINT) OVER (
            PARTITION BY trace_id, device, level ORDER BY start_ns, activity_id ROWS UNBOUNDED PRECEDING
        ) AS island
    FROM begun
),

island AS (
    SELECT trace_id, device, level, min(start_ns) AS start_ns, max(end_ns) AS end_ns
    FROM numbered
    GROUP BY trace_id, device, level, island
)

SELECT
    *,
    (
        sum(end_ns - start_ns) OVER (PARTITION BY trace_id, device, level ORDER BY start_ns ROWS UNBOUNDED PRECEDING)
        - (end_ns - start_ns)
    )::BIGINT AS covered_ns
FROM island
