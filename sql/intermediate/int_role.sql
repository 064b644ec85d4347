-- What a GEMM is for, where its place among the other kernels of its layer proves it; a name alone (nvjet) proves nothing.
-- experts: any expert GEMM. router: the GEMM right before the routing top-k on its stream, its split-K reduce too. o_proj: the
-- last GEMM between attention and the norm behind it. mla_absorb: beside MLA, the GEMM right before attention behind the KV
-- write, and the one right behind attention when another follows before the norm. shared: other GEMMs behind the norm of a
-- layer with experts, if its router is known. dense_mlp: GEMMs behind the norm of a layer without experts. lm_head: GEMMs
-- behind the last layer, before sampling.
-- grain: trace_id, activity_id (activities with a role only)
WITH kernel AS (
    SELECT
        layer.trace_id,
        layer.device,
        layer.step,
        layer.activity_id,
        layer.layer,
        layer.is_behind_layers,
        rule.stream,
        rule.start_ns,
        kernel_rule.category,
        kernel_rule.subcategory,
        kernel_rule.category = 'routing' AND kernel_rule.subcategory = 'topk' AS is_topk
    FROM int_layer AS layer
    INNER JOIN int_activity_rule AS rule USING (trace_id, activity_id)
    INNER JOIN kernel_rule USING (rule_id)
),

layer_span AS (
    SELECT
        trace_id,
        device,
        step,
        layer,
        min(start_ns) FILTER (WHERE category = 'attention' AND subcategory NOT IN ('combine', 'indexer')) AS attention_ns,
        max(start_ns) FILTER (WHERE category = 'attention') AS attention_end_ns,
        bool_or(category = 'attention' AND subcategory = 'mla') AS is_mla,
        bool_or(category = 'moe_gemm') AS has_experts,
        min(start_ns) FILTER (WHERE category = 'kv_cache') AS cache_ns
    FROM kernel
    WHERE layer IS NOT NULL
    GROUP BY trace_id, device, step, layer
),

placed AS (
    SELECT kernel.*, layer_span.* EXCLUDE (trace_id, device, step, layer)
    FROM kernel
    INNER JOIN layer_span USING (trace_id, device, step, layer)
),

norm_behind AS (
    SELECT trace_id, device, step, layer, min(start_ns) AS norm_ns
    FROM placed
    WHERE category = 'norm' AND start_ns > attention_end_ns
    GROUP BY trace_id, device, step, layer
),

-- A split-K reduce belongs to the GEMM before it on its stream.
neighbours AS (
    SELECT
        placed.*,
        norm_behind.norm_ns,
        placed.subcategory = 'splitk' AS is_reduce,
        placed.subcategory <> 'splitk' AND (
            coalesce(lead(placed.is_topk) OVER on_stream, FALSE)
            OR coalesce(lead(placed.subcategory) OVER on_stream = 'splitk' AND lead(placed.is_topk, 2) OVER on_stream, FALSE)
        ) AS is_before_topk
    FROM placed
    LEFT JOIN norm_behind USING (trace_id, device, step, layer)
    WINDOW on_stream AS (
        PARTITION BY placed.trace_id, placed.device, placed.step, placed.layer, placed.stream
        ORDER BY placed.start_ns, placed.activity_id
    )
),

gemm AS (
    SELECT *, bool_or(is_before_topk AND start_ns > norm_ns) OVER (PARTITION BY trace_id, device, step, layer) AS has_router
    FROM neighbours
    WHERE category = 'gemm'
),

between_attention_and_norm AS (
    SELECT
        activity_id,
        trace_id,
        row_number() OVER (PARTITION BY trace_id, device, step, layer ORDER BY start_ns, activity_id) AS place,
        count(*) OVER (PARTITION BY trace_id, device, step, layer) AS gemms
    FROM gemm
    WHERE NOT is_reduce AND start_ns > attention_end_ns AND start_ns < norm_ns
),

last_before_attention AS (
    SELECT trace_id, activity_id
    FROM gemm
    WHERE NOT is_reduce AND is_mla AND start_ns < attention_ns AND start_ns > cache_ns
    QUALIFY row_number() OVER (PARTITION BY trace_id, device, step, layer ORDER BY start_ns DESC, activity_id DESC) = 1
),

of_gemm AS (
    SELECT
        gemm.*,
        CASE
            WHEN gemm.start_ns > gemm.norm_ns AND gemm.is_before_topk THEN 'router'
            WHEN gemm.start_ns > gemm.norm_ns AND gemm.has_experts THEN CASE WHEN gemm.has_router THEN 'shared' END
            WHEN gemm.start_ns > gemm.norm_ns THEN 'dense_mlp'
            WHEN behind.place = behind.gemms THEN 'o_proj'
            WHEN gemm.is_mla AND behind.place = 1 THEN 'mla_absorb'
            WHEN before_it.activity_id IS NOT NULL THEN 'mla_absorb'
        END AS role
    FROM gemm
    LEFT JOIN between_attention_and_norm AS behind ON gemm.trace_id = behind.trace_id AND gemm.activity_id = behind.activity_id
    LEFT JOIN last_before_attention AS before_it
        ON gemm.trace_id = before_it.trace_id AND gemm.activity_id = before_it.activity_id
),

with_reduce AS (
    SELECT
        trace_id,
        activity_id,
        CASE
            WHEN is_reduce
                THEN lag(role) OVER (PARTITION BY trace_id, device, step, layer, stream ORDER BY start_ns, activity_id)
            ELSE role
        END AS role
    FROM of_gemm
),

first_sampling AS (
    SELECT trace_id, device, step, min(start_ns) AS sampling_ns
    FROM kernel
    WHERE is_behind_layers AND category = 'sampling'
    GROUP BY trace_id, device, step
)

SELECT rule.trace_id, rule.activity_id, 'embed' AS role
FROM int_activity_rule AS rule
INNER JOIN kernel_rule USING (rule_id)
WHERE kernel_rule.category = 'embedding'
UNION ALL
SELECT kernel.trace_id, kernel.activity_id, 'logits' AS role
FROM kernel
INNER JOIN first_sampling USING (trace_id, device, step)
WHERE kernel.is_behind_layers AND kernel.category = 'collective' AND kernel.start_ns < first_sampling.sampling_ns
UNION ALL
SELECT trace_id, activity_id, role
FROM with_reduce
WHERE role IS NOT NULL
UNION ALL
SELECT trace_id, activity_id, 'experts' AS role
FROM placed
WHERE category = 'moe_gemm'
UNION ALL
SELECT kernel.trace_id, kernel.activity_id, 'lm_head' AS role
FROM kernel
INNER JOIN first_sampling USING (trace_id, device, step)
WHERE kernel.is_behind_layers AND kernel.category = 'gemm' AND kernel.start_ns < first_sampling.sampling_ns
