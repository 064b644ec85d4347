-- First steps in which a collective waited for another rank's profiler to start: one communication kernel of
-- start_skew_ns or more that takes at least start_skew_factor times the median of its name in the same step.
-- The comparison is within the step, so that a large prefill, whose collectives are all long, is not
-- mistaken for skew.
-- grain: trace_id, step
WITH first_step AS (
    SELECT trace_id, min(step) AS step
    FROM int_step_window
    GROUP BY trace_id
),

communication AS (
    SELECT placed.trace_id, placed.step, rule.name, rule.dur_ns
    FROM int_activity_step AS placed
    INNER JOIN first_step USING (trace_id, step)
    INNER JOIN int_activity AS rule USING (trace_id, activity_id)
    INNER JOIN kernel_rule USING (rule_id)
    WHERE is_communication(kernel_rule.category)
),

by_name AS (
    SELECT trace_id, step, max(dur_ns) AS longest_ns, median(dur_ns) AS median_ns
    FROM communication
    GROUP BY trace_id, step, name
)

SELECT trace_id, step, max(longest_ns) AS longest_ns
FROM by_name
WHERE longest_ns >= start_skew_ns() AND longest_ns >= start_skew_factor() * median_ns
GROUP BY trace_id, step
