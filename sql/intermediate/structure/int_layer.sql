-- The layer of each kernel of a step, from the order of kernels alone. A transformer block is attention,
-- then an MLP or experts; the next block begins at the first norm after the MLP's activation or expert
-- GEMMs. Where that norm is fused into the all-reduce of the MLP's sum, the kernel belongs to the block
-- whose sum it reduces, and the next block begins after it. The norm after the last block is the final norm:
-- kernels from there on belong to no layer, nor do those of draft models. A step with a block without
-- attention proves nothing: no layers.
-- grain: trace_id, activity_id (kernels of steps with layers only)
WITH kernel AS (
    SELECT
        rule.trace_id,
        rule.device,
        placed.step,
        rule.activity_id,
        rule.start_ns,
        is_norm(kernel_rule.category, kernel_rule.subcategory) AS is_norm,
        kernel_rule.category = 'allreduce' AS is_allreduce,
        is_attention(kernel_rule.category, kernel_rule.subcategory) AS is_attention,
        is_mlp(kernel_rule.category) AS is_mlp,
        kernel_rule.category = 'sampling' AS is_sampling
    FROM int_activity AS rule
    INNER JOIN int_activity_step AS placed USING (trace_id, activity_id)
    INNER JOIN kernel_rule USING (rule_id)
    ANTI JOIN int_draft AS draft ON rule.trace_id = draft.trace_id AND rule.activity_id = draft.activity_id
    WHERE placed.step IS NOT NULL AND rule.kind = 'kernel'
),

landmark AS (
    SELECT
        trace_id,
        device,
        step,
        activity_id,
        start_ns,
        is_norm
        AND coalesce(
            lag(is_mlp) OVER in_step,
            NOT coalesce(max(is_norm OR is_attention OR is_mlp) OVER before_it, FALSE)
        ) AS is_begin
    FROM kernel
    WHERE is_norm OR is_attention OR is_mlp
    WINDOW
        in_step AS (PARTITION BY trace_id, device, step ORDER BY start_ns, activity_id),
        before_it AS (
            PARTITION BY trace_id, device, step
            ORDER BY start_ns, activity_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
),

numbered AS (
    SELECT
        kernel.*,
        sum(coalesce(landmark.is_begin, FALSE)::INTEGER) OVER (
            PARTITION BY kernel.trace_id, kernel.device, kernel.step
            ORDER BY kernel.start_ns, kernel.activity_id ROWS UNBOUNDED PRECEDING
        ) - CASE WHEN landmark.is_begin AND kernel.is_allreduce THEN 2 ELSE 1 END AS block
    FROM kernel
    LEFT JOIN landmark USING (trace_id, activity_id)
),

block AS (
    SELECT
        trace_id,
        device,
        step,
        block,
        bool_or(is_attention) AS has_attention,
        coalesce(
            min(start_ns) FILTER (WHERE is_sampling) < min(start_ns) FILTER (WHERE is_attention), FALSE
        ) AS is_sampled_first
    FROM numbered
    WHERE block >= 0
    GROUP BY trace_id, device, step, block
),

of_model AS (
    SELECT * FROM block
    QUALIFY
        NOT bool_or(is_sampled_first)
            OVER (PARTITION BY trace_id, device, step ORDER BY block ROWS UNBOUNDED PRECEDING)
),

proven AS (
    SELECT
        trace_id,
        device,
        step,
        max(block) FILTER (WHERE has_attention) + 1 AS layers
    FROM of_model
    GROUP BY trace_id, device, step
    -- Every block up to the last with attention has one, and a layer repeats at least once.
    HAVING count(*) FILTER (WHERE has_attention) = max(block) FILTER (WHERE has_attention) + 1 AND layers >= 2
)

SELECT
    numbered.trace_id,
    numbered.device,
    numbered.step,
    numbered.activity_id,
    proven.layers,
    CASE WHEN numbered.block BETWEEN 0 AND proven.layers - 1 THEN numbered.block END::INTEGER AS layer,
    numbered.block >= proven.layers AS is_after_layers
FROM numbered
INNER JOIN proven USING (trace_id, device, step)
