-- Every communication kernel with its position in its step. `part` is where it runs: before_layers or
-- after_layers; within a layer before_attention, after_attention, after_mlp or after_moe, by what of the
-- layer started before it; draft for kernels of draft models; unknown where the order of kernels proves no
-- layers. `place` is its number among the step's communication kernels. The second kernel of an all-reduce
-- that consists of two (`is_half`) has the number of the first. `is_early`: it started before the previous
-- kernel on its stream had ended (programmatic launch), so its start is not its arrival.
-- grain: trace_id, activity_id (communication kernels only)
WITH kernel AS (
    SELECT
        rule.trace_id,
        rule.device,
        rule.activity_id,
        rule.name,
        rule.stream,
        rule.start_ns,
        rule.end_ns,
        rule.dur_ns,
        kernel_rule.category,
        kernel_rule.subcategory,
        kernel_rule.is_fused,
        is_communication(kernel_rule.category) AS is_communication
    FROM int_activity AS rule
    INNER JOIN kernel_rule USING (rule_id)
    WHERE rule.kind = 'kernel'
),

layer_span AS (
    SELECT
        layer.trace_id,
        layer.device,
        layer.step,
        layer.layer,
        min(kernel.start_ns) FILTER (WHERE kernel.category = 'attention') AS attention_ns,
        min(kernel.start_ns) FILTER (WHERE kernel.category <> 'attention') AS mlp_ns,
        bool_or(kernel.category = 'moe_gemm') AS has_moe
    FROM kernel
    INNER JOIN int_layer AS layer USING (trace_id, activity_id)
    WHERE
        layer.layer IS NOT NULL
        AND (
            is_mlp(kernel.category) OR is_attention(kernel.category, kernel.subcategory)
        )
    GROUP BY layer.trace_id, layer.device, layer.step, layer.layer
),

communication AS (
    SELECT
        kernel.*,
        placed.step,
        -- activity_id numbers the activities of each stream in order.
        coalesce(before_it.end_ns > kernel.start_ns, FALSE) AS is_early,
        regexp_matches(kernel.name, 'rmsNormLamport|local_device_load_rmsnorm') AS is_half
    FROM kernel
    INNER JOIN int_activity_step AS placed USING (trace_id, activity_id)
    LEFT JOIN int_activity AS before_it
        ON
            kernel.trace_id = before_it.trace_id AND kernel.activity_id - 1 = before_it.activity_id
            AND kernel.device = before_it.device AND kernel.stream = before_it.stream
    WHERE kernel.is_communication
)

SELECT
    call.trace_id,
    call.device,
    call.activity_id,
    call.step,
    layer.layer,
    CASE
        WHEN draft.activity_id IS NOT NULL THEN 'draft'
        WHEN layer.is_after_layers AND layer.layer IS NULL THEN 'after_layers'
        WHEN layer.is_after_layers IS NOT NULL AND layer.layer IS NULL THEN 'before_layers'
        WHEN layer.layer IS NULL THEN 'unknown'
        WHEN call.start_ns > layer_span.mlp_ns AND layer_span.has_moe THEN 'after_moe'
        WHEN call.start_ns > layer_span.mlp_ns THEN 'after_mlp'
        WHEN call.start_ns > layer_span.attention_ns THEN 'after_attention'
        ELSE 'before_attention'
    END AS part,
    call.category,
    call.subcategory,
    role.role,
    call.is_fused,
    call.is_half,
    call.is_early,
    call.start_ns,
    call.end_ns,
    call.dur_ns,
    CASE
        WHEN call.step IS NOT NULL THEN sum((NOT call.is_half)::INTEGER) OVER (
            PARTITION BY call.trace_id, call.device, call.step
            ORDER BY call.start_ns, call.activity_id ROWS UNBOUNDED PRECEDING
        ) - 1
    END::BIGINT AS place
FROM communication AS call
LEFT JOIN int_layer AS layer ON call.trace_id = layer.trace_id AND call.activity_id = layer.activity_id
LEFT JOIN layer_span
    ON
        layer.trace_id = layer_span.trace_id
        AND layer.device = layer_span.device
        AND layer.step = layer_span.step
        AND layer.layer = layer_span.layer
LEFT JOIN int_draft AS draft ON call.trace_id = draft.trace_id AND call.activity_id = draft.activity_id
LEFT JOIN int_role AS role ON call.trace_id = role.trace_id AND call.activity_id = role.activity_id
