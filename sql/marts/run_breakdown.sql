-- The breakdown table: each kind of work over the complete steps of a phase. Counts are integers per step
-- and rank; the headline ms_p50 is the median over steps of the mean over ranks of busy time. Sources are
-- never mixed.
-- grain: source, phase, rollup
WITH step AS (
    SELECT
        run_id,
        source,
        trace_id,
        rank,
        device,
        step,
        step_unit(match_id, trace_id, device, step) AS match_id,
        phase,
        wall_ns
    FROM steps
    WHERE is_complete
),

by_rollup AS (
    SELECT
        trace_id,
        device,
        step,
        rollup,
        sum(calls)::BIGINT AS calls,
        sum(busy_ns)::BIGINT AS busy_ns,
        sum(exposed_ns)::BIGINT AS exposed_ns
    FROM step_breakdown
    WHERE step IS NOT NULL
    GROUP BY ALL
),

seen AS (
    SELECT DISTINCT step.source, step.phase, by_rollup.rollup
    FROM step
    INNER JOIN by_rollup USING (trace_id, device, step)
),

-- A step without a kind of work counts as 0 of it.
cell AS (
    SELECT
        step.*, seen.rollup, coalesce(by_rollup.calls, 0) AS calls, coalesce(by_rollup.busy_ns, 0) AS busy_ns,
        coalesce(by_rollup.exposed_ns, 0) AS exposed_ns
    FROM step
    INNER JOIN seen USING (source, phase)
    LEFT JOIN by_rollup
        ON
            step.trace_id = by_rollup.trace_id
            AND step.device = by_rollup.device
            AND step.step = by_rollup.step
            AND seen.rollup = by_rollup.rollup
),

by_match AS (
    SELECT run_id, source, phase, rollup, match_id, avg(busy_ns) AS busy_ns, avg(exposed_ns) AS exposed_ns
    FROM cell
    GROUP BY ALL
),

over_steps AS (
    SELECT
        run_id, source, phase, rollup, count(*) AS steps, median(busy_ns) AS p50, avg(busy_ns) AS mean,
        quantile_cont(busy_ns, 0.9) AS p90,
        quantile_cont(busy_ns, 0.99) AS p99,
        median(exposed_ns) AS exposed_p50
    FROM by_match
    GROUP BY ALL
),

call_count AS (
    SELECT source, phase, rollup, calls, count(*) AS times FROM cell GROUP BY ALL
),

calls AS (
    SELECT
        source,
        phase,
        rollup,
        min(calls) AS calls_min,
        arg_min(calls, (-times, calls)) AS calls_mode,
        max(calls) AS calls_max
    FROM call_count
    GROUP BY ALL
),

by_rank AS (
    SELECT source, phase, rollup, trace_id, device, any_value(rank) AS rank, median(busy_ns) AS p50
    FROM cell
    GROUP BY source, phase, rollup, trace_id, device
),

over_ranks AS (
    SELECT
        source, phase, rollup, count(*) AS ranks, min(p50) AS rank_min, max(p50) AS rank_max,
        arg_max(rank, (p50, -rank)) AS worst_rank
    FROM by_rank
    GROUP BY source, phase, rollup
),

total AS (
    SELECT
        source, phase, rollup, sum(busy_ns) AS busy_ns, sum(calls) AS calls,
        sum(exposed_ns) FILTER (WHERE wall_ns IS NOT NULL) AS exposed_ns, sum(wall_ns) AS wall_ns
    FROM cell
    GROUP BY ALL
)

SELECT
    over_steps.run_id,
    over_steps.source,
    over_steps.phase,
    over_steps.rollup,
    over_steps.steps,
    over_ranks.ranks,
    calls.calls_min,
    calls.calls_mode,
    calls.calls_max,
    round(total.busy_ns / 1e3 / nullif(total.calls, 0), 3) AS us_per_call,
    ns_to_ms(over_steps.p50) AS ms_p50,
    ns_to_ms(over_steps.mean) AS ms_mean,
    ns_to_ms(over_steps.p90) AS ms_p90,
    ns_to_ms(over_steps.p99) AS ms_p99,
    ns_to_ms(over_ranks.rank_min) AS ms_rank_min,
    ns_to_ms(over_ranks.rank_max) AS ms_rank_max,
    over_ranks.worst_rank,
    share_of(over_steps.mean, sum(over_steps.mean) OVER (PARTITION BY over_steps.source, over_steps.phase))
        AS share,
    ns_to_ms(over_steps.exposed_p50) AS exposed_ms_p50,
    share_of(total.exposed_ns, total.wall_ns) AS wall_share
FROM over_steps
INNER JOIN calls USING (source, phase, rollup)
INNER JOIN over_ranks USING (source, phase, rollup)
INNER JOIN total USING (source, phase, rollup)
