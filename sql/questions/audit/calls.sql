-- Collectives of complete steps as the audit counts them: operation (with dispatch and combine where the
-- layout exchanges tokens between experts' ranks) and position. Shapes of step whose positions are not proven
-- (unplaced) have one position only. Reads audit_step (steps.sql).
-- grain: trace_id, activity_id (without kernels that prepare an exchange)
-- parameters: run_id, exchanges, unplaced (stage, phase, graph_tokens)
WITH unplaced AS (
    SELECT unnest($unplaced::STRUCT(stage BIGINT, phase VARCHAR, graph_tokens BIGINT)[], recursive := TRUE)
),

step AS (
    SELECT audit_step.*, unplaced.stage IS NOT NULL AS is_unplaced
    FROM audit_step
    LEFT JOIN unplaced
        ON
            audit_step.stage = unplaced.stage AND audit_step.phase = unplaced.phase
            AND audit_step.graph_tokens IS NOT DISTINCT FROM unplaced.graph_tokens
),

named AS (
    SELECT
        step.*,
        call.part,
        call.layer,
        coalesce(call.subcategory, '') AS kind,
        call.is_half,
        call.dur_ns,
        $exchanges AND call.layer IS NOT NULL AND call.part <> 'before_attention' AS may_exchange,
        CASE
            WHEN call.role IN ('dispatch', 'combine') THEN call.role
            WHEN call.category = 'allreduce' THEN 'all-reduce'
            WHEN call.category = 'p2p' THEN 'send/receive'
            WHEN call.subcategory IN ('notify', 'layout') THEN 'preparation'
            WHEN
                may_exchange
                AND (
                    call.subcategory = 'reduce_scatter'
                    OR (call.category = 'all_to_all' AND call.part = 'after_moe')
                )
                THEN 'combine'
            WHEN may_exchange AND (call.subcategory = 'all_gather' OR call.category = 'all_to_all')
                THEN 'dispatch'
            WHEN call.category = 'all_to_all' THEN 'all-to-all'
            ELSE replace(coalesce(call.subcategory, call.category), '_', '-')
        END AS operation
    FROM collectives AS call
    INNER JOIN step USING (trace_id, device, step)
    WHERE call.run_id = $run_id
)

SELECT
    trace_id,
    device,
    step,
    rank,
    stage,
    phase,
    graph_tokens,
    CASE
        WHEN operation = 'send/receive' THEN 'any'
        WHEN part = 'draft' THEN part
        WHEN is_unplaced THEN 'unknown'
        WHEN operation IN ('dispatch', 'combine') THEN 'moe'
        ELSE part
    END AS part,
    CASE WHEN operation <> 'send/receive' AND NOT is_unplaced THEN layer END AS layer,
    operation,
    kind,
    is_half,
    dur_ns
FROM named
WHERE operation <> 'preparation'
