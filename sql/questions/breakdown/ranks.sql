-- Wall time of the complete steps of a phase that a step of the same phase follows, by rank. The mean is
-- split so that its parts add up to it: exposed time of compute and of communication, the rest (copies, and
-- work of other steps inside the wall less own work outside it), idle time and the gap. Units: ns.
-- grain: trace_id, device
-- parameters: run_id, source, phase, communication (rollups)
WITH step AS (
    SELECT *
    FROM steps
    WHERE
        run_id = $run_id AND source = $source AND phase = $phase AND is_complete AND wall_ns IS NOT NULL
        AND next_phase = phase
),

owned AS (
    SELECT
        trace_id,
        device,
        step,
        coalesce(sum(exposed_ns) FILTER (WHERE list_contains($communication, rollup)), 0) AS communication_ns,
        coalesce(sum(exposed_ns) FILTER (WHERE category IN ('memcpy', 'memset')), 0) AS copy_ns,
        sum(exposed_ns) AS exposed_ns
    FROM step_breakdown
    WHERE run_id = $run_id AND source = $source AND phase = $phase
    GROUP BY ALL
)

SELECT
    step.trace_id,
    any_value(step.rank) AS rank,
    step.device,
    count(*) AS steps,
    quantile_cont(step.wall_ns, 0.5) AS wall_p50,
    quantile_cont(step.wall_ns, 0.9) AS wall_p90,
    avg(step.wall_ns) AS wall_mean,
    avg(owned.exposed_ns - owned.communication_ns - owned.copy_ns) AS compute,
    avg(owned.communication_ns) AS communication,
    avg(owned.copy_ns + step.borrowed_ns - step.exposed_outside_ns) AS other,
    avg(step.idle_inside_ns) AS idle_inside,
    avg(step.gap_after_ns) AS gap,
    median(step.launch_lag_p50_ns) AS lag,
    count(*) FILTER (WHERE step.gap_cause = 'host_late') AS host_late
FROM step
INNER JOIN owned USING (trace_id, device, step)
GROUP BY step.trace_id, step.device
ORDER BY rank, step.trace_id, step.device
