-- Elements of all-reduces that carry no arguments (graphs, vLLM's own NCCL calls), where they can be known: each reduces one
-- hidden state per token, so tokens x hidden_size, with the size said in run_config. Tokens: the graph's padded size, else what
-- the step's marker scheduled. Never guessed: NULL where either is unknown, and for all-reduces outside the model's layers other
-- than the one before the first (the embedding's).
-- grain: trace_id, activity_id
WITH scheduled AS (
    SELECT
        begin_at.trace_id,
        begin_at.step,
        tokens.graph_tokens,
        coalesce(begin_at.scheduled_context_tokens, CASE WHEN begin_at.context_requests = 0 THEN 0 END) + begin_at.generation_tokens
            AS scheduled_tokens
    FROM int_step_begin AS begin_at
    LEFT JOIN int_step_tokens AS tokens USING (trace_id, step)
)

SELECT
    layer.trace_id,
    layer.activity_id,
    coalesce(scheduled.graph_tokens, scheduled.scheduled_tokens) * run_config.hidden_size AS msg_nelems,
    CASE WHEN scheduled.graph_tokens IS NOT NULL THEN 'graph_tokens x hidden_size' ELSE 'scheduled tokens x hidden_size' END AS msg_source
FROM int_layer AS layer
INNER JOIN int_activity_rule USING (trace_id, activity_id)
INNER JOIN kernel_rule USING (rule_id)
INNER JOIN scheduled ON layer.trace_id = scheduled.trace_id AND layer.step = scheduled.step
CROSS JOIN run_config
WHERE kernel_rule.category = 'allreduce' AND NOT layer.is_behind_layers AND run_config.hidden_size IS NOT NULL
