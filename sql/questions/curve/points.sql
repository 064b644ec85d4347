-- Steps of one phase of a run by their size: global batch, tokens of the graph, and context (the median of
-- the markers of a request, NULL where they do not), each with the time of each category as lists over the
-- steps that have it. The row without a category is all kernels. Reads sample_step (compare/steps.sql).
-- Units: ms, mean over ranks.
-- grain: batch, graph_tokens, category
-- parameters: run_id, source
WITH size AS (
    SELECT
        match_id,
        coalesce(context_requests + generation_requests, generation_requests, context_requests) AS batch,
        graph_tokens
    FROM run_steps
    WHERE run_id = $run_id AND source = $source
),

rank_step AS (
    SELECT *
    FROM steps
    WHERE run_id = $run_id AND source = $source
),

step AS (
    SELECT
        sampled.*,
        coalesce(
            size.batch,
            own.context_requests + own.generation_requests,
            own.generation_requests,
            own.context_requests
        ) AS batch,
        coalesce(size.graph_tokens, own.graph_tokens) AS graph_tokens,
        own.kv_tokens / nullif(own.generation_requests, 0) AS context_tokens
    FROM sample_step AS sampled
    INNER JOIN rank_step AS own
        ON
            sampled.trace_id = own.trace_id
            AND sampled.device = own.device
            AND sampled.step = own.step
    LEFT JOIN size ON sampled.match_id = size.match_id
    WHERE sampled.is_used
),

unit AS (
    SELECT
        unit,
        batch,
        graph_tokens,
        median(context_tokens) AS context_tokens,
        CASE WHEN count(wall_ns) = count(*) THEN avg(wall_ns) END AS wall_ns
    FROM step
    GROUP BY unit, batch, graph_tokens
),

point AS (
    SELECT
        batch,
        graph_tokens,
        count(*) AS steps,
        median(context_tokens) AS context_tokens,
        median(wall_ns) / 1e6 AS wall_ms
    FROM unit
    GROUP BY ALL
),

work AS (
    SELECT
        step.unit,
        step.batch,
        step.graph_tokens,
        booked.category,
        any_value(step.ranks) AS ranks,
        sum(booked.busy_ns) AS busy_ns,
        sum(booked.exposed_ns) AS exposed_ns,
        sum(booked.calls) AS calls
    FROM step
    INNER JOIN step_breakdown AS booked
        ON step.trace_id = booked.trace_id AND step.device = booked.device AND step.step = booked.step
    WHERE booked.run_id = $run_id
    GROUP BY
        GROUPING SETS (
            (step.unit, step.batch, step.graph_tokens, booked.category),
            (step.unit, step.batch, step.graph_tokens)
        )
)

SELECT
    point.batch,
    point.graph_tokens,
    point.context_tokens,
    point.wall_ms,
    point.steps,
    work.category,
    list(work.busy_ns / work.ranks / 1e6) AS busy_ms,
    list(work.exposed_ns / work.ranks / 1e6) AS exposed_ms,
    quantile_disc(work.calls // work.ranks, 0.5)::BIGINT AS calls
FROM work
INNER JOIN point
    ON
        work.batch IS NOT DISTINCT FROM point.batch
        AND work.graph_tokens IS NOT DISTINCT FROM point.graph_tokens
GROUP BY point.batch, point.graph_tokens, point.context_tokens, point.wall_ms, point.steps, work.category
ORDER BY ALL
