-- What the complete steps of a source show of the layout, for facts that are not given: all-reduces,
-- exchanges between experts' ranks, reduce-scatters instead of all-reduces after attention, two all-reduces
-- after every MoE layer, GEMMs of a shared expert.
-- grain: one row
-- parameters: run_id, source
WITH audit AS (
    SELECT *
    FROM allreduce_audit
    WHERE run_id = $run_id AND source = $source AND is_complete
),

kinds AS (
    SELECT
        coalesce(bool_or(category = 'allreduce'), FALSE) AS has_reduce,
        coalesce(bool_or(role IN ('dispatch', 'combine')), FALSE) AS has_exchange
    FROM audit
),

layer AS (
    SELECT
        trace_id,
        phase,
        graph_tokens,
        layer,
        sum(calls_mode) FILTER (WHERE part = 'after_moe' AND category = 'allreduce') AS after_moe,
        sum(calls_mode) FILTER (WHERE part = 'after_attention' AND category = 'allreduce') AS reduces,
        sum(calls_mode) FILTER (WHERE part = 'after_attention' AND subcategory = 'reduce_scatter') AS scatters
    FROM audit
    WHERE layer IS NOT NULL
    GROUP BY ALL
),

layers AS (
    SELECT
        count(scatters) > 0 AND count(reduces) = 0 AS has_scatter,
        coalesce(bool_and(after_moe = 2) FILTER (WHERE after_moe IS NOT NULL), FALSE) AS has_two_after_moe
    FROM layer
),

shared AS (
    SELECT count(*) > 0 AS has_shared
    FROM activity
    WHERE run_id = $run_id AND source = $source AND role = 'shared'
)

SELECT kinds.has_reduce, kinds.has_exchange, layers.has_scatter, layers.has_two_after_moe, shared.has_shared
FROM kinds
CROSS JOIN layers
CROSS JOIN shared
