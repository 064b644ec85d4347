-- Positions at which complete steps hold more or fewer calls than expected (`high` NULL: no upper limit),
-- with the usual count, the usual excess (negative where calls are missing), the steps that deviate, the
-- first of them and its rank. Reads audit_step and audit_call (steps.sql, calls.sql). Units: us of the extra
-- calls per step.
-- grain: expectation
-- parameters: expected (stage, phase, graph_tokens, part, layer, operation, low, high)
WITH expected AS (
    SELECT unnest(
        $expected::STRUCT(
            stage BIGINT,
            phase VARCHAR,
            graph_tokens BIGINT,
            part VARCHAR,
            layer BIGINT,
            operation VARCHAR,
            low BIGINT,
            high BIGINT
        )[],
        recursive := TRUE
    )
),

per_step AS (
    SELECT
        trace_id,
        device,
        step,
        part,
        layer,
        operation,
        count(*) FILTER (WHERE NOT is_half) AS calls,
        sum(dur_ns) AS ns,
        list(DISTINCT kind) AS kinds
    FROM audit_call
    GROUP BY ALL
),

found AS (
    SELECT
        expected.*,
        audit_step.step,
        audit_step.rank,
        coalesce(per_step.calls, 0) AS calls,
        coalesce(per_step.ns, 0) AS ns,
        per_step.kinds
    FROM expected
    INNER JOIN audit_step
        ON
            expected.stage = audit_step.stage AND expected.phase = audit_step.phase
            AND expected.graph_tokens IS NOT DISTINCT FROM audit_step.graph_tokens
    LEFT JOIN per_step
        ON
            audit_step.trace_id = per_step.trace_id AND audit_step.device = per_step.device
            AND audit_step.step = per_step.step
            AND expected.part = per_step.part AND expected.operation = per_step.operation
            AND expected.layer IS NOT DISTINCT FROM per_step.layer
),

judged AS (
    SELECT *, CASE WHEN calls > high THEN calls - high WHEN calls < low THEN calls - low ELSE 0 END AS extra
    FROM found
)

SELECT
    stage,
    phase,
    graph_tokens,
    part,
    layer,
    operation,
    low,
    high,
    mode(calls) AS calls,
    mode(extra) AS extra,
    count(*) AS steps,
    min(step) AS first_step,
    arg_min(rank, (step, rank)) AS first_rank,
    avg(ns * greatest(extra, 0) / nullif(calls, 0)) / 1e3 AS us_per_step,
    list_sort(list_distinct(flatten(list(kinds) FILTER (WHERE kinds IS NOT NULL)))) AS kinds
FROM judged
WHERE extra <> 0
GROUP BY stage, phase, graph_tokens, part, layer, operation, low, high
ORDER BY ALL
