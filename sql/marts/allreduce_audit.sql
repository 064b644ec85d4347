-- Collectives per step, counted by kind and position, for each shape of step (phase, and the tokens of its
-- graph). Counts are integers; a step of the shape without such a call counts as 0. An all-reduce that
-- consists of two kernels is one call of two kernels.
-- grain: trace_id, device, phase, is_complete, graph_tokens, part, layer, category, subcategory, role
WITH shaped AS (
    SELECT
        trace_id,
        device,
        step,
        phase,
        is_complete,
        CASE WHEN graph_launches > 0 THEN coalesce(graph_tokens, 0) END AS graph_tokens
    FROM steps
),

shape AS (
    SELECT trace_id, device, phase, is_complete, graph_tokens, count(*) AS steps
    FROM shaped
    GROUP BY trace_id, device, phase, is_complete, graph_tokens
),

counted AS (
    SELECT
        call.run_id,
        call.source,
        call.trace_id,
        call.rank,
        call.device,
        shaped.phase,
        shaped.is_complete,
        shaped.graph_tokens,
        call.position,
        call.part,
        call.layer,
        call.category,
        call.subcategory,
        call.role,
        call.step,
        count(*) FILTER (WHERE NOT call.is_half) AS calls,
        count(*) AS kernels,
        sum(call.dur_ns)::BIGINT AS busy_ns
    FROM collectives AS call
    INNER JOIN shaped USING (trace_id, device, step)
    GROUP BY ALL
),

times AS (
    SELECT
        * EXCLUDE (step, kernels, busy_ns),
        count(*) AS times,
        sum(kernels) AS kernels,
        sum(busy_ns) AS busy_ns
    FROM counted
    GROUP BY ALL
),

summed AS (
    SELECT
        * EXCLUDE (calls, times, kernels, busy_ns),
        sum(times)::BIGINT AS steps_with,
        sum(calls * times)::BIGINT AS calls,
        sum(kernels)::BIGINT AS kernels,
        sum(busy_ns)::BIGINT AS busy_ns,
        min(calls) AS least,
        max(calls) AS most,
        max(times) AS most_times,
        arg_min(calls, (-times, calls)) AS most_frequent
    FROM times
    GROUP BY ALL
)

SELECT
    summed.run_id,
    summed.source,
    summed.trace_id,
    summed.rank,
    summed.device,
    summed.phase,
    summed.is_complete,
    summed.graph_tokens,
    summed.position,
    summed.part,
    summed.layer,
    summed.category,
    summed.subcategory,
    summed.role,
    shape.steps,
    summed.steps_with,
    CASE WHEN summed.steps_with < shape.steps THEN 0 ELSE summed.least END AS calls_min,
    CASE WHEN shape.steps - summed.steps_with >= summed.most_times THEN 0 ELSE summed.most_frequent END
        AS calls_mode,
    summed.most AS calls_max,
    summed.calls,
    summed.kernels,
    summed.busy_ns,
    round(summed.busy_ns / 1e3 / nullif(summed.calls, 0), 3) AS us_per_call
FROM summed
INNER JOIN shape
    ON
        summed.trace_id = shape.trace_id AND summed.device = shape.device AND summed.phase = shape.phase
        AND summed.is_complete = shape.is_complete
        AND summed.graph_tokens IS NOT DISTINCT FROM shape.graph_tokens
