-- Every GPU activity with its step, its category, the rule that claimed it, and its exposed time.
-- grain: trace_id, activity_id
WITH step AS (
    SELECT trace_id, device, step, phase FROM steps
)

SELECT
    trace.run_id,
    trace.source,
    rule.trace_id,
    trace.rank,
    rule.device,
    rule.activity_id,
    rule.kind,
    placed.step,
    coalesce(step.phase, 'unknown') AS phase,
    layer.layer,
    kernel_rule.category,
    kernel_rule.subcategory,
    role.role,
    -- The proven purpose of an all-gather or reduce-scatter decides its row of the table.
    CASE WHEN role.role IN ('dispatch', 'combine') THEN 'MoE dispatch and combine' ELSE category.rollup END
        AS rollup,
    kernel_rule.is_fused,
    rule.rule_id,
    rule.op,
    rule.name,
    rule.stream,
    rule.correlation,
    placed.placed_by,
    placed.no_step_reason,
    rule.start_ns,
    rule.dur_ns,
    exposed.exposed_ns,
    coalesce(argument.in_msg_nelems, sized.msg_nelems) AS msg_nelems,
    CASE
        WHEN argument.in_msg_nelems IS NOT NULL THEN 'arguments'
        WHEN sized.msg_nelems IS NOT NULL THEN sized.msg_source
    END AS msg_source
FROM int_activity AS rule
INNER JOIN stg_trace AS trace USING (trace_id)
INNER JOIN kernel_rule USING (rule_id)
INNER JOIN category_info AS category ON kernel_rule.category = category.category
INNER JOIN int_activity_step AS placed
    ON rule.trace_id = placed.trace_id AND rule.activity_id = placed.activity_id
INNER JOIN int_exposed AS exposed
    ON rule.trace_id = exposed.trace_id AND rule.activity_id = exposed.activity_id
LEFT JOIN raw.gpu_activity AS argument
    ON
        rule.trace_id = argument.trace_id
        AND rule.activity_id = argument.activity_id
        AND argument.in_msg_nelems IS NOT NULL
LEFT JOIN int_message AS sized ON rule.trace_id = sized.trace_id AND rule.activity_id = sized.activity_id
LEFT JOIN int_layer AS layer ON rule.trace_id = layer.trace_id AND rule.activity_id = layer.activity_id
LEFT JOIN int_role AS role ON rule.trace_id = role.trace_id AND rule.activity_id = role.activity_id
LEFT JOIN step ON rule.trace_id = step.trace_id AND rule.device = step.device AND placed.step = step.step
