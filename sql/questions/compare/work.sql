-- GPU time of the used units by kind of work. Reads sample_step (steps.sql). Units: ms, mean over ranks.
-- grain: unit, rollup, category
-- parameters: run_id
SELECT
    step.unit,
    booked.rollup,
    booked.category,
    sum(booked.busy_ns) / any_value(step.ranks) / 1e6 AS busy_ms,
    sum(booked.exposed_ns) / any_value(step.ranks) / 1e6 AS exposed_ms
FROM sample_step AS step
INNER JOIN step_breakdown AS booked
    ON step.trace_id = booked.trace_id AND step.device = booked.device AND step.step = booked.step
WHERE booked.run_id = $run_id AND step.is_used
GROUP BY ALL
ORDER BY ALL
