-- Why the device waited before a step's first kernel: host_late when the call that launched it was made
-- after the device had become idle; unknown when the call was made earlier, or has no record.
-- grain: trace_id, device, start_ns (of the step after the gap)
WITH first_kernel AS (
    SELECT rule.trace_id, rule.device, rule.start_ns, min(rule.launch_ns) AS launch_ns
    FROM int_activity AS rule
    INNER JOIN int_step_window AS step
        ON rule.trace_id = step.trace_id AND rule.device = step.device AND rule.start_ns = step.start_ns
    GROUP BY rule.trace_id, rule.device, rule.start_ns
),

-- One pass over work and first kernels by time: an ASOF join of few steps with much work would compare each
-- with each.
in_order AS (
    SELECT trace_id, device, start_ns, FALSE AS is_work, launch_ns, NULL AS end_ns FROM first_kernel
    UNION ALL
    SELECT trace_id, device, start_ns, TRUE AS is_work, NULL AS launch_ns, end_ns
    FROM int_busy_interval
    WHERE level = 3
),

before_it AS (
    SELECT
        *,
        max(end_ns)
            OVER (PARTITION BY trace_id, device ORDER BY start_ns, is_work ROWS UNBOUNDED PRECEDING)
            AS empty_from_ns
    FROM in_order
)

SELECT
    trace_id,
    device,
    start_ns,
    CASE WHEN launch_ns > empty_from_ns THEN 'host_late' ELSE 'unknown' END AS gap_cause
FROM before_it
WHERE NOT is_work
