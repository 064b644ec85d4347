-- Elements of all-reduces that carry no arguments (graphs, vLLM's own NCCL calls), where they can be known: each reduces one
-- hidden state per token, so tokens x hidden_size, with the size said in run_config. Tokens: in a graph its padded size, else
-- what the step's marker scheduled. Never guessed: no row where either is unknown, nor for all-reduces outside the model's
-- layers other than the one before the first (the embedding's).
-- grain: trace_id, activity_id
WITH scheduled AS (
    SELECT
        begin_at.trace_id,
        begin_at.device,
        begin_at.step,
        coalesce(tokens.graph_tokens, begin_at.graph_tokens) AS graph_tokens,
        coalesce(begin_at.scheduled_context_tokens, CASE WHEN begin_at.context_requests = 0 THEN 0 END) + begin_at.generation_tokens
            AS scheduled_tokens
    FROM int_step_begin AS begin_at
    LEFT JOIN int_step_tokens AS tokens USING (trace_id, step)
),

all_reduce AS (
    SELECT
        layer.trace_id,
        layer.activity_id,
        rule.is_graph,
        CASE WHEN rule.is_graph THEN scheduled.graph_tokens ELSE scheduled.scheduled_tokens END AS tokens
    FROM int_layer AS layer
    INNER JOIN int_activity_rule AS rule USING (trace_id, activity_id)
    INNER JOIN kernel_rule USING (rule_id)
    INNER JOIN scheduled
        ON layer.trace_id = scheduled.trace_id AND layer.step = scheduled.step AND coalesce(layer.device = scheduled.device, TRUE)
    WHERE kernel_rule.category = 'allreduce' AND NOT layer.is_behind_layers
)

SELECT
    all_reduce.trace_id,
    all_reduce.activity_id,
    all_reduce.tokens * run_config.hidden_size AS msg_nelems,
    CASE WHEN all_reduce.is_graph THEN 'graph_tokens x hidden_size' ELSE 'scheduled tokens x hidden_size' END AS msg_source
FROM all_reduce
CROSS JOIN run_config
WHERE all_reduce.tokens IS NOT NULL AND run_config.hidden_size IS NOT NULL
