-- Forward passes found in the order of kernels alone, per device: a kernel that recurs after the same number
-- of kernels marks them. Of all names that do so (at least 3 times, 3 of 5 distances equal, covering half of
-- all kernels) the one with the longest distance is taken, since layers repeat within a step; of equals an
-- embedding, else the first. Each period must hold two attention kernels and embed or sample, so that
-- layers, training and diffusion, which repeat too, produce no steps.
-- grain: trace_id, device, step
WITH kernel AS (
    SELECT
        rule.trace_id,
        rule.device,
        rule.activity_id,
        rule.name,
        rule.start_ns,
        kernel_rule.category,
        kernel_rule.subcategory,
        row_number()
            OVER (PARTITION BY rule.trace_id, rule.device ORDER BY rule.start_ns, rule.activity_id)
            AS position
    FROM int_activity AS rule
    INNER JOIN kernel_rule USING (rule_id)
    WHERE rule.kind = 'kernel'
),

spaced AS (
    SELECT
        trace_id,
        device,
        name,
        category,
        position,
        position - lag(position) OVER (PARTITION BY trace_id, device, name ORDER BY position) AS distance
    FROM kernel
),

distance_count AS (
    SELECT trace_id, device, name, category, distance, count(*) AS times, min(position) AS first_position
    FROM spaced
    WHERE distance IS NOT NULL
    GROUP BY trace_id, device, name, category, distance
),

regular AS (
    SELECT
        trace_id,
        device,
        name,
        any_value(category) AS category,
        arg_max(distance, (times, distance)) AS period,
        max(times) AS times,
        sum(times) AS distances,
        min(first_position) AS first_position
    FROM distance_count
    GROUP BY trace_id, device, name
    HAVING sum(times) >= 2 AND max(times) * 5 >= sum(times) * 3
),

total AS (SELECT trace_id, device, count(*) AS kernels FROM kernel GROUP BY trace_id, device),

anchor AS (
    SELECT regular.trace_id, regular.device, regular.name, regular.period
    FROM regular
    INNER JOIN total USING (trace_id, device)
    WHERE regular.times * regular.period * 2 >= total.kernels
    QUALIFY row_number() OVER (
        PARTITION BY regular.trace_id, regular.device
        ORDER BY regular.period DESC, (regular.category = 'embedding') DESC, regular.first_position ASC
    ) = 1
),

begun AS (
    SELECT kernel.*, anchor.period, kernel.name = anchor.name AS is_begin
    FROM kernel
    INNER JOIN anchor USING (trace_id, device)
),

numbered AS (
    SELECT
        *,
        sum(is_begin::INTEGER) OVER (PARTITION BY trace_id, device ORDER BY position ROWS UNBOUNDED PRECEDING)
        - 1 AS step
    FROM begun
),

pass AS (
    SELECT
        trace_id,
        device,
        step,
        min(start_ns) AS start_ns,
        any_value(period) AS period,
        count(*) AS kernels,
        count(*) FILTER (WHERE is_attention(category, subcategory)) AS attentions,
        bool_or(category IN ('embedding', 'sampling')) AS is_generation
    FROM numbered
    WHERE step >= 0
    GROUP BY trace_id, device, step
)

SELECT
    trace_id,
    device,
    step::BIGINT AS step,
    start_ns,
    kernels,
    CASE WHEN kernels = period THEN 'decode' ELSE 'unknown' END AS phase,
    0.5::DOUBLE AS confidence
FROM pass
QUALIFY
    bool_and(kernels <> period OR (attentions >= 2 AND is_generation)) OVER (PARTITION BY trace_id, device)
