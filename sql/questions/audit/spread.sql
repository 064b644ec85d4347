-- Calls per step by shape of step and operation and, where switched on, by part, layer and kind (NULL where
-- off). `present` steps have such a call; `often` of them have `calls_mode` of it, the most frequent number.
-- Reads audit_step and audit_call (steps.sql, calls.sql).
-- grain: stage, phase, graph_tokens, part, layer, operation, kind
-- parameters: by_part, by_layer, by_kind
WITH call AS (
    SELECT
        stage,
        phase,
        graph_tokens,
        trace_id,
        device,
        step,
        operation,
        kind,
        is_half,
        dur_ns,
        CASE WHEN $by_part THEN part END AS shown_part,
        CASE WHEN $by_layer THEN layer END AS shown_layer,
        CASE WHEN $by_kind THEN kind END AS shown_kind
    FROM audit_call
),

per_step AS (
    SELECT
        stage,
        phase,
        graph_tokens,
        shown_part,
        shown_layer,
        operation,
        shown_kind,
        trace_id,
        device,
        step,
        count(*) FILTER (WHERE NOT is_half) AS calls,
        sum(dur_ns) AS ns,
        list(DISTINCT kind) AS kinds
    FROM call
    GROUP BY
        stage,
        phase,
        graph_tokens,
        shown_part,
        shown_layer,
        operation,
        shown_kind,
        trace_id,
        device,
        step
),

total AS (
    SELECT stage, phase, graph_tokens, count(*) AS steps
    FROM audit_step
    GROUP BY ALL
),

frequency AS (
    SELECT
        stage,
        phase,
        graph_tokens,
        shown_part,
        shown_layer,
        operation,
        shown_kind,
        calls,
        count(*) AS times,
        sum(ns) AS ns,
        list_sort(list_distinct(flatten(list(kinds)))) AS kinds
    FROM per_step
    GROUP BY stage, phase, graph_tokens, shown_part, shown_layer, operation, shown_kind, calls
)

SELECT
    frequency.stage,
    frequency.phase,
    frequency.graph_tokens,
    frequency.shown_part AS part,
    frequency.shown_layer AS layer,
    frequency.operation,
    frequency.shown_kind AS kind,
    any_value(total.steps) AS steps,
    min(frequency.calls) AS calls_min,
    arg_min(frequency.calls, (-frequency.times, frequency.calls)) AS calls_mode,
    max(frequency.calls) AS calls_max,
    sum(frequency.times) AS present,
    max(frequency.times) AS often,
    sum(frequency.ns) / 1e3 / nullif(sum(frequency.calls * frequency.times), 0) AS us_per_call,
    list_sort(list_distinct(flatten(list(frequency.kinds)))) AS kinds
FROM frequency
INNER JOIN total
    ON
        frequency.stage = total.stage AND frequency.phase = total.phase
        AND frequency.graph_tokens IS NOT DISTINCT FROM total.graph_tokens
GROUP BY
    frequency.stage,
    frequency.phase,
    frequency.graph_tokens,
    frequency.shown_part,
    frequency.shown_layer,
    frequency.operation,
    frequency.shown_kind
