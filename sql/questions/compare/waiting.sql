-- Floor and waiting of the collectives of the used units, and how many of them cannot be compared across
-- ranks. Reads sample_step (steps.sql). Units: ms, mean over ranks.
-- grain: unit, rollup
-- parameters: run_id, source
WITH kernel AS (
    SELECT trace_id, activity_id, rollup
    FROM activity
    WHERE run_id = $run_id AND source = $source AND is_communication(category)
)

SELECT
    step.unit,
    kernel.rollup,
    sum(call.floor_ns) / any_value(step.ranks) / 1e6 AS floor_ms,
    sum(call.wait_ns) / any_value(step.ranks) / 1e6 AS wait_ms,
    count(*) FILTER (WHERE call.refusal IS NOT NULL) AS refused,
    min(call.refusal) AS refusal
FROM sample_step AS step
INNER JOIN collectives AS call
    ON
        step.trace_id = call.trace_id
        AND step.device = call.device
        AND step.step = call.step
INNER JOIN kernel ON call.trace_id = kernel.trace_id AND call.activity_id = kernel.activity_id
WHERE call.run_id = $run_id AND step.is_used
GROUP BY ALL
ORDER BY ALL
