-- Calls and time of each kind of work in each step, in ns. Activities outside steps are in rows with step
-- NULL, so that the sum over all rows is all GPU time.
-- grain: trace_id, device, step, category, subcategory, rollup
WITH booked AS (
    SELECT
        run_id, source, trace_id, rank, device, step, phase, category, subcategory, rollup,
        count(*) AS calls, sum(dur_ns)::BIGINT AS busy_ns, sum(exposed_ns)::BIGINT AS exposed_ns
    FROM activity
    GROUP BY ALL
)

SELECT
    booked.*,
    share_of(
        booked.busy_ns, sum(booked.busy_ns) OVER (PARTITION BY booked.trace_id, booked.device, booked.step)
    ) AS busy_share,
    share_of(booked.exposed_ns, steps.wall_ns) AS wall_share
FROM booked
LEFT JOIN steps
    ON booked.trace_id = steps.trace_id AND booked.device = steps.device AND booked.step = steps.step
