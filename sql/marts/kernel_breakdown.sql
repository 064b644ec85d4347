-- Calls and time of each kernel name per phase; `unknown` holds activities outside steps.
-- grain: source, phase, name, rule_id, rollup
WITH per_step AS (
    SELECT source, phase, name, rule_id, rollup, trace_id, device, step, count(*) AS calls
    FROM activity
    WHERE step IS NOT NULL
    GROUP BY ALL
),

call_count AS (
    SELECT source, phase, name, rule_id, rollup, calls, count(*) AS times FROM per_step GROUP BY ALL
),

calls AS (
    SELECT source, phase, name, rule_id, rollup, arg_min(calls, (-times, calls)) AS calls_mode
    FROM call_count
    GROUP BY ALL
),

booked AS (
    SELECT
        run_id, source, phase, name, rule_id, category, rollup, count(*) AS calls, sum(dur_ns) AS busy_ns,
        quantile_cont(dur_ns, 0.5) AS p50, quantile_cont(dur_ns, 0.99) AS p99
    FROM activity
    GROUP BY ALL
)

SELECT
    booked.run_id,
    booked.source,
    booked.phase,
    booked.name,
    short_name(booked.name) AS short_name,
    booked.category,
    booked.rollup,
    booked.rule_id,
    booked.calls,
    calls.calls_mode,
    ns_to_ms(booked.busy_ns) AS ms_total,
    round(booked.busy_ns / 1e3 / booked.calls, 3) AS us_mean,
    round(booked.p50 / 1e3, 3) AS us_p50,
    round(booked.p99 / 1e3, 3) AS us_p99,
    share_of(booked.busy_ns, sum(booked.busy_ns) OVER (PARTITION BY booked.source, booked.phase)) AS share
FROM booked
LEFT JOIN calls USING (source, phase, name, rule_id, rollup)
