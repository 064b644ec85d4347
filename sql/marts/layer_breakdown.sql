-- Calls and time of each category in each layer, over the complete steps of a phase.
-- grain: source, phase, layer, category, rollup
WITH work AS (
    SELECT
        activity.run_id,
        activity.source,
        activity.phase,
        activity.layer,
        activity.category,
        activity.rollup,
        activity.trace_id,
        activity.device,
        activity.step,
        count(*) AS calls,
        sum(activity.dur_ns)::BIGINT AS busy_ns,
        sum(activity.exposed_ns)::BIGINT AS exposed_ns
    FROM activity
    INNER JOIN steps
        ON
            activity.trace_id = steps.trace_id
            AND activity.device = steps.device
            AND activity.step = steps.step
    WHERE activity.layer IS NOT NULL AND steps.is_complete
    GROUP BY ALL
),

call_count AS (
    SELECT source, phase, layer, category, rollup, calls, count(*) AS times
    FROM work
    GROUP BY ALL
),

calls AS (
    SELECT
        source,
        phase,
        layer,
        category,
        rollup,
        min(calls) AS calls_min,
        arg_min(calls, (-times, calls)) AS calls_mode,
        max(calls) AS calls_max
    FROM call_count
    GROUP BY ALL
)

SELECT
    work.run_id,
    work.source,
    work.phase,
    work.layer,
    work.category,
    work.rollup,
    count(*) AS steps,
    any_value(calls.calls_min) AS calls_min,
    any_value(calls.calls_mode) AS calls_mode,
    any_value(calls.calls_max) AS calls_max,
    round(median(work.busy_ns) / 1e3, 3) AS us_p50,
    round(avg(work.busy_ns) / 1e3, 3) AS us_mean,
    round(median(work.exposed_ns) / 1e3, 3) AS exposed_us_p50
FROM work
INNER JOIN calls USING (source, phase, layer, category, rollup)
GROUP BY work.run_id, work.source, work.phase, work.layer, work.category, work.rollup
