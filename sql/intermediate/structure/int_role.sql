-- The purpose of a GEMM, where its position among the other kernels of its layer proves it; a name alone
-- (nvjet) proves nothing. experts: any expert GEMM. router: the GEMM right before the routing top-k on its
-- stream, with its split-K reduce. o_proj: the last GEMM between attention and the following norm.
-- mla_absorb: with MLA, the GEMM right before attention and after the KV write, and the one right after
-- attention if another follows before the norm. shared: other GEMMs after the norm of a layer with experts,
-- if its router is known. dense_mlp: GEMMs after the norm of a layer without experts. lm_head: GEMMs after
-- the last layer, before sampling. q_a, q_b, kv_a: with MLA, the GEMMs before the KV write, where a norm
-- between them (or the name of the fused kernel) shows the low-rank query; one GEMM that computes q_a and
-- kv_a is q_a. dispatch, combine: kernels of these names, and all-to-alls of a layer with experts before its
-- first and after its last expert GEMM; its all-gathers and reduce-scatters there too, unless attention ends
-- in a reduce-scatter, which is sequence parallelism. draft: all kernels of draft models.
-- grain: trace_id, activity_id (activities with a role only)
WITH kernel AS (
    SELECT
        layer.trace_id,
        layer.device,
        layer.step,
        layer.activity_id,
        layer.layer,
        layer.is_after_layers,
        rule.stream,
        rule.start_ns,
        kernel_rule.category,
        kernel_rule.subcategory,
        kernel_rule.category = 'routing' AND kernel_rule.subcategory = 'topk' AS is_topk
    FROM int_layer AS layer
    INNER JOIN int_activity AS rule USING (trace_id, activity_id)
    INNER JOIN kernel_rule USING (rule_id)
),

layer_span AS (
    SELECT
        trace_id,
        device,
        step,
        layer,
        min(start_ns) FILTER (WHERE is_attention(category, subcategory)) AS attention_ns,
        max(start_ns) FILTER (WHERE category = 'attention') AS attention_end_ns,
        -- A user's attention rule may have no subcategory (other): then the KV write proves latent
        -- attention.
        bool_or(category = 'attention' AND subcategory = 'mla') OR (
            bool_or(category = 'attention' AND subcategory = 'other')
            AND bool_or(category = 'kv_cache' AND subcategory = 'mla')
        ) AS is_mla,
        bool_or(category = 'moe_gemm') AS has_experts,
        min(start_ns) FILTER (WHERE category = 'kv_cache') AS cache_ns,
        min(start_ns) FILTER (WHERE category = 'moe_gemm') AS experts_ns,
        max(start_ns) FILTER (WHERE category = 'moe_gemm') AS experts_end_ns
    FROM kernel
    WHERE layer IS NOT NULL
    GROUP BY trace_id, device, step, layer
),

placed AS (
    SELECT kernel.*, layer_span.* EXCLUDE (trace_id, device, step, layer)
    FROM kernel
    INNER JOIN layer_span USING (trace_id, device, step, layer)
),

norm_after AS (
    SELECT trace_id, device, step, layer, min(start_ns) AS norm_ns
    FROM placed
    WHERE is_norm(category, subcategory) AND start_ns > attention_end_ns
    GROUP BY trace_id, device, step, layer
),

-- A split-K reduce belongs to the GEMM before it on its stream.
neighbors AS (
    SELECT
        placed.*,
        norm_after.norm_ns,
        placed.subcategory = 'splitk' AS is_reduce,
        placed.subcategory <> 'splitk' AND (
            coalesce(lead(placed.is_topk) OVER on_stream, FALSE)
            OR coalesce(
                lead(placed.subcategory) OVER on_stream = 'splitk' AND lead(placed.is_topk, 2) OVER on_stream,
                FALSE
            )
        ) AS is_before_topk
    FROM placed
    LEFT JOIN norm_after USING (trace_id, device, step, layer)
    WINDOW on_stream AS (
        PARTITION BY placed.trace_id, placed.device, placed.step, placed.layer, placed.stream
        ORDER BY placed.start_ns, placed.activity_id
    )
),

gemm AS (
    SELECT
        *,
        bool_or(is_before_topk AND start_ns > norm_ns)
            OVER (PARTITION BY trace_id, device, step, layer) AS has_router
    FROM neighbors
    WHERE category = 'gemm'
),

between_attention_and_norm AS (
    SELECT
        activity_id,
        trace_id,
        row_number()
            OVER (PARTITION BY trace_id, device, step, layer ORDER BY start_ns, activity_id) AS place,
        count(*) OVER (PARTITION BY trace_id, device, step, layer) AS gemms
    FROM gemm
    WHERE NOT is_reduce AND start_ns > attention_end_ns AND start_ns < norm_ns
),

last_before_attention AS (
    SELECT trace_id, activity_id
    FROM gemm
    WHERE NOT is_reduce AND is_mla AND start_ns < attention_ns AND start_ns > cache_ns
    QUALIFY
        row_number()
            OVER (PARTITION BY trace_id, device, step, layer ORDER BY start_ns DESC, activity_id DESC)
        = 1
),

normed AS (
    SELECT
        *,
        -- FILTER in a window with an order takes quadratic time in DuckDB 2.0.1.
        count(CASE WHEN category = 'norm' THEN 1 END)
            OVER (PARTITION BY trace_id, device, step, layer ORDER BY start_ns, activity_id) AS norms,
        count(*) FILTER (WHERE category = 'norm' AND start_ns < cache_ns)
            OVER (PARTITION BY trace_id, device, step, layer) AS all_norms
    FROM neighbors
    WHERE category IN ('gemm', 'norm')
),

before_cache AS (
    SELECT
        *,
        row_number() OVER in_layer AS place,
        lag(norms) OVER in_layer AS norms_before,
        count(*) OVER (PARTITION BY trace_id, device, step, layer) AS gemms
    FROM normed
    WHERE category = 'gemm' AND NOT is_reduce AND is_mla AND start_ns < cache_ns
    WINDOW in_layer AS (PARTITION BY trace_id, device, step, layer ORDER BY start_ns, activity_id)
),

low_rank AS (
    SELECT
        *,
        bool_or(place = 1 AND subcategory = 'fused_a')
            OVER (PARTITION BY trace_id, device, step, layer) AS is_fused_a,
        bool_or(place = 2 AND norms > norms_before)
            OVER (PARTITION BY trace_id, device, step, layer) AS is_low_rank
    FROM before_cache
),

of_latent AS (
    SELECT
        trace_id,
        activity_id,
        CASE
            WHEN NOT (gemms = 2 AND is_fused_a) AND NOT (gemms IN (2, 3) AND is_low_rank) THEN NULL
            WHEN place = 1 THEN 'q_a'
            WHEN place = 2 THEN 'q_b'
            WHEN place = 3 AND all_norms > norms THEN 'kv_a'
        END AS role
    FROM low_rank
),

of_gemm AS (
    SELECT
        gemm.*,
        CASE
            WHEN gemm.start_ns > gemm.norm_ns AND gemm.is_before_topk THEN 'router'
            WHEN gemm.start_ns > gemm.norm_ns AND gemm.has_experts
                THEN CASE WHEN gemm.has_router THEN 'shared' END
            WHEN gemm.start_ns > gemm.norm_ns THEN 'dense_mlp'
            WHEN after_attention.place = after_attention.gemms THEN 'o_proj'
            WHEN gemm.is_mla AND after_attention.place = 1 THEN 'mla_absorb'
            WHEN before_it.activity_id IS NOT NULL THEN 'mla_absorb'
            ELSE of_latent.role
        END AS role
    FROM gemm
    LEFT JOIN between_attention_and_norm AS after_attention
        ON gemm.trace_id = after_attention.trace_id AND gemm.activity_id = after_attention.activity_id
    LEFT JOIN last_before_attention AS before_it
        ON gemm.trace_id = before_it.trace_id AND gemm.activity_id = before_it.activity_id
    LEFT JOIN of_latent ON gemm.trace_id = of_latent.trace_id AND gemm.activity_id = of_latent.activity_id
),

-- A layer whose attention ends in a reduce-scatter is sequence-parallel: its all-gather is no dispatch.
exchange AS (
    SELECT
        placed.*,
        norm_after.norm_ns,
        coalesce(placed.subcategory, '') AS kind,
        bool_or(
            coalesce(
                placed.subcategory = 'reduce_scatter'
                AND placed.start_ns > placed.attention_end_ns AND placed.start_ns < norm_after.norm_ns,
                FALSE
            )
        )
            OVER (PARTITION BY placed.trace_id, placed.device, placed.step, placed.layer)
            AS is_sequence_parallel
    FROM placed
    LEFT JOIN norm_after USING (trace_id, device, step, layer)
    WHERE placed.has_experts AND placed.category IN ('collective', 'all_to_all')
),

of_exchange AS (
    SELECT
        trace_id,
        activity_id,
        CASE
            WHEN category = 'collective' AND (is_sequence_parallel OR norm_ns IS NULL) THEN NULL
            WHEN
                start_ns > coalesce(norm_ns, attention_end_ns)
                AND start_ns < experts_ns
                AND kind <> 'reduce_scatter'
                THEN 'dispatch'
            WHEN start_ns > experts_end_ns AND kind <> 'all_gather' THEN 'combine'
        END AS role
    FROM exchange
    WHERE
        kind IN ('all_gather', 'reduce_scatter')
        OR (category = 'all_to_all' AND kind NOT IN ('dispatch', 'combine'))
),

with_reduce AS (
    SELECT
        trace_id,
        activity_id,
        CASE
            WHEN is_reduce
                THEN
                    lag(role)
                        OVER (
                            PARTITION BY trace_id, device, step, layer, stream ORDER BY start_ns, activity_id
                        )
            ELSE role
        END AS role
    FROM of_gemm
),

first_sampling AS (
    SELECT trace_id, device, step, min(start_ns) AS sampling_ns
    FROM kernel
    WHERE is_after_layers AND category = 'sampling'
    GROUP BY trace_id, device, step
)

SELECT rule.trace_id, rule.activity_id, 'embed' AS role
FROM int_activity AS rule
INNER JOIN kernel_rule USING (rule_id)
ANTI JOIN int_draft AS draft ON rule.trace_id = draft.trace_id AND rule.activity_id = draft.activity_id
WHERE kernel_rule.category = 'embedding'
UNION ALL
SELECT rule.trace_id, rule.activity_id, kernel_rule.subcategory AS role
FROM int_activity AS rule
INNER JOIN kernel_rule USING (rule_id)
ANTI JOIN int_draft AS draft ON rule.trace_id = draft.trace_id AND rule.activity_id = draft.activity_id
WHERE kernel_rule.category = 'all_to_all' AND kernel_rule.subcategory IN ('dispatch', 'combine')
UNION ALL
SELECT kernel.trace_id, kernel.activity_id, 'logits' AS role
FROM kernel
INNER JOIN first_sampling USING (trace_id, device, step)
WHERE
    kernel.is_after_layers AND kernel.category = 'collective' AND kernel.start_ns < first_sampling.sampling_ns
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
WHERE kernel.is_after_layers AND kernel.category = 'gemm' AND kernel.start_ns < first_sampling.sampling_ns
UNION ALL
SELECT trace_id, activity_id, role
FROM of_exchange
WHERE role IS NOT NULL
UNION ALL
SELECT trace_id, activity_id, 'draft' AS role
FROM int_draft
