-- Kernels of draft models (speculative decoding), where that is proven: launched inside the annotation of a
-- draft pass, or by a graph replay with attention that comes after the sampling of its step's main replay
-- and holds at most half of its layers.
-- grain: trace_id, activity_id
WITH draft_span AS (
    SELECT trace_id, pid, tid, start_ns, end_ns FROM stg_annotation WHERE is_step_draft(name)
    UNION ALL
    SELECT marker.trace_id, marker.pid, marker.tid, marker.start_ns, marker.end_ns
    FROM int_step_marker AS marker
    INNER JOIN int_marked_pass AS pass
        ON
            marker.trace_id = pass.trace_id AND marker.pid = pass.pid AND marker.tid = pass.tid
            AND marker.start_ns BETWEEN pass.start_ns AND pass.end_ns
    WHERE marker.phase = 'draft' OR (marker.part = 'before' AND pass.phase IN ('verify', 'draft'))
),

launched AS (
    SELECT
        rule.trace_id,
        rule.correlation,
        placed.step,
        any_value(rule.pid) AS pid,
        any_value(rule.tid) AS tid,
        any_value(rule.launch_ns) AS launch_ns,
        any_value(rule.is_graph) AS is_graph,
        count(*) FILTER (WHERE is_attention(kernel_rule.category, kernel_rule.subcategory)) AS attentions,
        bool_or(kernel_rule.category = 'sampling') AS is_sampling
    FROM int_activity AS rule
    INNER JOIN int_activity_step AS placed USING (trace_id, activity_id)
    INNER JOIN kernel_rule USING (rule_id)
    WHERE rule.launch_ns IS NOT NULL
    GROUP BY rule.trace_id, rule.correlation, placed.step
),

by_span AS (
    SELECT launched.trace_id, launched.correlation, launched.step
    FROM launched
    ASOF JOIN draft_span
        ON
            launched.trace_id = draft_span.trace_id
            AND launched.pid = draft_span.pid
            AND launched.tid = draft_span.tid
            AND launched.launch_ns >= draft_span.start_ns
    WHERE launched.launch_ns < draft_span.end_ns
),

main_replay AS (
    SELECT
        trace_id,
        step,
        max(attentions) AS attentions,
        arg_max(launch_ns, (attentions, -launch_ns)) AS launch_ns
    FROM launched
    WHERE is_graph AND step IS NOT NULL
    GROUP BY trace_id, step
    HAVING max(attentions) >= 2
),

sampled AS (
    SELECT launched.trace_id, launched.step, min(launched.launch_ns) AS sampling_ns
    FROM launched
    INNER JOIN main_replay USING (trace_id, step)
    WHERE launched.is_sampling AND launched.launch_ns >= main_replay.launch_ns
    GROUP BY launched.trace_id, launched.step
),

by_replay AS (
    SELECT launched.trace_id, launched.correlation, launched.step
    FROM launched
    INNER JOIN main_replay USING (trace_id, step)
    INNER JOIN sampled USING (trace_id, step)
    WHERE
        launched.is_graph AND launched.attentions BETWEEN 1 AND main_replay.attentions // 2
        AND launched.launch_ns > main_replay.launch_ns AND launched.launch_ns >= sampled.sampling_ns
),

draft AS (
    SELECT * FROM by_span
    UNION
    SELECT * FROM by_replay
)

SELECT rule.trace_id, rule.activity_id
FROM int_activity AS rule
INNER JOIN int_activity_step AS placed USING (trace_id, activity_id)
INNER JOIN draft
    ON
        rule.trace_id = draft.trace_id AND rule.correlation = draft.correlation
        AND placed.step IS NOT DISTINCT FROM draft.step
WHERE rule.kind = 'kernel'
