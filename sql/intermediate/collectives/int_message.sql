-- Number of elements of all-reduces without arguments (CUDA graphs, vLLM's own NCCL calls), where it can be
-- known. Each reduces one hidden state per token: tokens x hidden_size. hidden_size comes from run_config,
-- else from this trace's eager all-reduces, if all of them with arguments use one communicator and show one
-- size per token over at least two different numbers of tokens. Tokens: the padded size of a graph, else
-- what the step's marker scheduled. Never guessed: no row where either is unknown, nor for all-reduces
-- outside the model's layers except the one before the first layer (the embedding's).
-- grain: trace_id, activity_id
WITH scheduled AS (
    SELECT
        begin_at.trace_id,
        begin_at.device,
        begin_at.step,
        coalesce(tokens.graph_tokens, begin_at.graph_tokens) AS graph_tokens,
        coalesce(begin_at.scheduled_context_tokens, CASE WHEN begin_at.context_requests = 0 THEN 0 END)
        + begin_at.generation_tokens AS scheduled_tokens
    FROM int_step_begin AS begin_at
    LEFT JOIN int_step_tokens AS tokens USING (trace_id, step)
),

all_reduce AS (
    SELECT
        layer.trace_id,
        layer.activity_id,
        rule.is_graph,
        argument.in_msg_nelems,
        coalesce(argument.process_group, '') AS process_group,
        CASE WHEN rule.is_graph THEN scheduled.graph_tokens ELSE scheduled.scheduled_tokens END AS tokens
    FROM int_layer AS layer
    INNER JOIN int_activity AS rule USING (trace_id, activity_id)
    INNER JOIN kernel_rule USING (rule_id)
    LEFT JOIN raw.gpu_activity AS argument
        ON
            layer.trace_id = argument.trace_id
            AND layer.activity_id = argument.activity_id
            AND argument.in_msg_nelems IS NOT NULL
    INNER JOIN scheduled
        ON
            layer.trace_id = scheduled.trace_id
            AND layer.step = scheduled.step
            AND coalesce(layer.device = scheduled.device, TRUE)
    WHERE kernel_rule.category = 'allreduce' AND NOT layer.is_after_layers
),

shown AS (
    SELECT trace_id, min(in_msg_nelems // tokens) AS hidden_size
    FROM all_reduce
    WHERE NOT is_graph AND in_msg_nelems IS NOT NULL
    GROUP BY trace_id
    HAVING
        count(*) = count(nullif(tokens, 0))
        AND count(DISTINCT tokens) >= 2
        AND count(DISTINCT process_group) = 1
        AND max(in_msg_nelems % tokens) = 0 AND count(DISTINCT in_msg_nelems // tokens) = 1
)

SELECT
    all_reduce.trace_id,
    all_reduce.activity_id,
    all_reduce.tokens * coalesce(run_config.hidden_size, shown.hidden_size) AS msg_nelems,
    concat(
        CASE WHEN all_reduce.is_graph THEN 'graph_tokens' ELSE 'scheduled tokens' END,
        CASE
            WHEN run_config.hidden_size IS NULL THEN ' x hidden size of eager calls' ELSE ' x hidden_size'
        END
    ) AS msg_source
FROM all_reduce
LEFT JOIN run_config ON TRUE
LEFT JOIN shown ON all_reduce.trace_id = shown.trace_id
WHERE
    all_reduce.in_msg_nelems IS NULL
    AND all_reduce.tokens IS NOT NULL
    AND coalesce(run_config.hidden_size, shown.hidden_size) IS NOT NULL
