-- Forward passes found in CUDA/HIP graph replays, without annotations. A replay begins a new pass unless
-- attention, and no part of an MLP, was launched eagerly since the previous replay: this keeps the pieces of
-- a piecewise pass together (attention runs between them), and an eager pass between two replays does not
-- join them. The passes with the most layers begin steps; smaller ones after such a pass (draft models)
-- belong to its step.
-- grain: trace_id, step
WITH launched AS (
    SELECT
        rule.trace_id,
        rule.correlation,
        any_value(rule.launch_ns) AS launch_ns,
        any_value(rule.pid) AS pid,
        any_value(rule.tid) AS tid,
        any_value(rule.is_graph) AS is_graph,
        count(*) AS activities,
        count(*) FILTER (WHERE is_attention(kernel_rule.category, kernel_rule.subcategory)) AS attentions,
        count(*) FILTER (WHERE is_mlp(kernel_rule.category)) AS mlps,
        bool_or(kernel_rule.category IN ('kv_cache', 'sampling')) AS is_generation
    FROM int_activity AS rule
    INNER JOIN kernel_rule USING (rule_id)
    WHERE rule.launch_ns IS NOT NULL
    GROUP BY rule.trace_id, rule.correlation
),

generating AS (SELECT trace_id, bool_or(is_generation) AS is_generation FROM launched GROUP BY trace_id),

counted AS (
    SELECT
        *,
        sum(CASE WHEN NOT is_graph THEN attentions ELSE 0 END) OVER so_far AS eager_attentions,
        sum(CASE WHEN NOT is_graph THEN mlps ELSE 0 END) OVER so_far AS eager_mlps
    FROM launched
    WINDOW so_far AS (PARTITION BY trace_id ORDER BY launch_ns, correlation ROWS UNBOUNDED PRECEDING)
),

replay AS (
    SELECT
        *,
        coalesce(
            eager_attentions = lag(eager_attentions) OVER in_order
            OR eager_mlps > lag(eager_mlps) OVER in_order,
            TRUE
        ) AS is_begin
    FROM counted
    WHERE is_graph
    WINDOW in_order AS (PARTITION BY trace_id ORDER BY launch_ns, correlation)
),

numbered AS (
    SELECT
        *,
        sum(is_begin::INTEGER)
            OVER (PARTITION BY trace_id ORDER BY launch_ns, correlation ROWS UNBOUNDED PRECEDING) AS pass
    FROM replay
),

pass AS (
    SELECT
        trace_id,
        pass,
        arg_min(pid, launch_ns) AS pid,
        arg_min(tid, launch_ns) AS tid,
        min(launch_ns) AS start_ns,
        max(launch_ns) + 1 AS end_ns,
        count(*) AS replays,
        sum(activities) AS activities,
        sum(attentions) + max(eager_attentions) - min(eager_attentions) AS layers
    FROM numbered
    GROUP BY trace_id, pass
),

sized AS (
    SELECT
        *,
        max(layers) OVER (PARTITION BY trace_id) AS most_layers,
        max(activities) OVER (PARTITION BY trace_id) AS most_activities
    FROM pass
),

judged AS (
    SELECT
        *,
        CASE WHEN most_layers > 0 THEN layers * 2 >= most_layers ELSE activities * 2 >= most_activities END
            AS is_anchor
    FROM sized
),

stepped AS (
    SELECT
        *,
        sum(is_anchor::INTEGER) OVER (PARTITION BY trace_id ORDER BY pass ROWS UNBOUNDED PRECEDING)
        - 1 AS step
    FROM judged
)

SELECT
    stepped.trace_id,
    stepped.step::BIGINT AS step,
    arg_min(stepped.pid, stepped.pass) AS pid,
    arg_min(stepped.tid, stepped.pass) AS tid,
    min(stepped.start_ns) AS start_ns,
    max(stepped.end_ns) AS end_ns,
    sum(stepped.replays)::BIGINT AS replays,
    CASE
        WHEN NOT any_value(generating.is_generation) OR max(stepped.replays) > 1 THEN 'unknown'
        WHEN count(*) > 1 THEN 'verify'
        ELSE 'decode'
    END AS phase,
    CASE
        WHEN NOT any_value(generating.is_generation) THEN 0.5
        WHEN max(stepped.replays) > 1 THEN 0.6
        ELSE 0.8
    END::DOUBLE AS confidence
FROM stepped
INNER JOIN generating USING (trace_id)
WHERE stepped.step >= 0
GROUP BY stepped.trace_id, stepped.step
