-- Why the device waited before a step's first kernel: host_late when the call that launched it came after the device had
-- gone empty; unknown when the call had come before, or has no record.
-- grain: trace_id, device, start_ns (of the step behind the gap)
WITH first_kernel AS (
    SELECT rule.trace_id, rule.device, rule.start_ns, min(rule.launch_ns) AS launch_ns
    FROM int_activity_rule AS rule
    INNER JOIN int_step_window AS step ON rule.trace_id = step.trace_id AND rule.device = step.device AND rule.start_ns = step.start_ns
    GROUP BY rule.trace_id, rule.device, rule.start_ns
),

work AS (SELECT trace_id, device, start_ns, end_ns FROM int_island WHERE level = 3),

before_it AS (
    SELECT first_kernel.*, work.end_ns AS empty_from_ns
    FROM first_kernel
    ASOF LEFT JOIN work
        ON first_kernel.trace_id = work.trace_id AND first_kernel.device = work.device AND first_kernel.start_ns > work.start_ns
)

SELECT trace_id, device, start_ns, CASE WHEN launch_ns > empty_from_ns THEN 'host_late' ELSE 'unknown' END AS gap_cause
FROM before_it
