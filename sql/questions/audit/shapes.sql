-- The shapes of complete steps: layers that the order of kernels proves, which of them have experts, and the
-- most frequent numbers of attention kernels in drafts and in layers. graph_tokens is NULL without a graph, 0
-- where its size is unknown.
-- grain: trace_id, phase, graph_tokens
-- parameters: run_id, source
WITH step AS (
    SELECT
        trace_id,
        device,
        step,
        phase,
        CASE WHEN graph_launches > 0 THEN coalesce(graph_tokens, 0) END AS graph_tokens
    FROM steps
    WHERE run_id = $run_id AND source = $source AND is_complete
),

kernel AS (
    SELECT
        step.*,
        activity.layer,
        activity.role,
        activity.category,
        is_attention(activity.category, activity.subcategory) AS is_attention
    FROM step
    INNER JOIN activity USING (trace_id, device, step)
    WHERE activity.run_id = $run_id
),

held AS (
    SELECT
        trace_id,
        phase,
        graph_tokens,
        step,
        max(layer) + 1 AS layers,
        list(DISTINCT layer) FILTER (WHERE layer IS NOT NULL AND category = 'moe_gemm') AS moe_layers,
        count(*) FILTER (WHERE role = 'draft' AND is_attention) AS draft_attentions,
        count(*) FILTER (WHERE layer IS NOT NULL AND is_attention) AS attentions
    FROM kernel
    GROUP BY trace_id, device, phase, graph_tokens, step
)

SELECT
    trace_id,
    phase,
    graph_tokens,
    max(layers) AS layers,
    list_sort(list_distinct(flatten(list(moe_layers) FILTER (WHERE moe_layers IS NOT NULL)))) AS moe_layers,
    mode(draft_attentions) AS draft_attentions,
    mode(attentions) AS attentions
FROM held
GROUP BY ALL
ORDER BY ALL
