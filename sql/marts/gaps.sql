-- Every interval in which a device ran nothing: where in a step, what ran before and after, and why.
-- inside_replay: both sides belong to one graph replay; between_launches: inside a step, from different
-- launches; between_steps: the next activity belongs to another step (or none). host_late: the call that
-- launched the next activity was made after the device had become idle; it does not apply inside graph
-- replays, whose kernels share one call.
-- grain: trace_id, device, start_ns
WITH ordered AS (
    SELECT
        rule.trace_id,
        rule.device,
        rule.activity_id,
        rule.start_ns,
        rule.end_ns,
        rule.correlation,
        rule.is_graph,
        rule.launch_ns,
        kernel_rule.category,
        placed.step,
        max(rule.end_ns) OVER before_it AS busy_until_ns
    FROM int_activity AS rule
    INNER JOIN kernel_rule USING (rule_id)
    INNER JOIN int_activity_step AS placed USING (trace_id, activity_id)
    WINDOW before_it AS (
        PARTITION BY rule.trace_id, rule.device ORDER BY rule.start_ns, rule.activity_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
),

after_gap AS (
    SELECT * FROM ordered
    WHERE start_ns > busy_until_ns
),

ending AS (
    SELECT trace_id, device, end_ns, arg_max(activity_id, (start_ns, activity_id)) AS activity_id
    FROM ordered
    GROUP BY trace_id, device, end_ns
),

before_gap AS (
    SELECT ending.trace_id, ending.device, ending.end_ns, ordered.category, ordered.step, ordered.correlation
    FROM ending
    INNER JOIN ordered USING (trace_id, activity_id)
)

SELECT
    trace.run_id,
    trace.source,
    after_gap.trace_id,
    trace.rank,
    after_gap.device,
    before_gap.step,
    coalesce(steps.phase, 'unknown') AS phase,
    after_gap.busy_until_ns AS start_ns,
    after_gap.start_ns - after_gap.busy_until_ns AS dur_ns,
    before_gap.category AS category_before,
    after_gap.category AS category_after,
    CASE
        WHEN
            NOT coalesce(after_gap.step = before_gap.step, after_gap.step IS NULL AND before_gap.step IS NULL)
            THEN 'between_steps'
        WHEN after_gap.is_graph AND after_gap.correlation = before_gap.correlation THEN 'inside_replay'
        ELSE 'between_launches'
    END AS place,
    CASE
        WHEN after_gap.launch_ns IS NULL THEN NULL
        WHEN after_gap.is_graph AND after_gap.correlation = before_gap.correlation THEN FALSE
        ELSE after_gap.launch_ns > after_gap.busy_until_ns
    END AS is_host_late,
    CASE
        WHEN after_gap.start_ns - after_gap.busy_until_ns < 1000 THEN 'under 1 us'
        WHEN after_gap.start_ns - after_gap.busy_until_ns < 10000 THEN '1 to 10 us'
        WHEN after_gap.start_ns - after_gap.busy_until_ns < 100000 THEN '10 to 100 us'
        WHEN after_gap.start_ns - after_gap.busy_until_ns < 1000000 THEN '100 us to 1 ms'
        ELSE '1 ms and more'
    END AS size_class
FROM after_gap
INNER JOIN before_gap
    ON
        after_gap.trace_id = before_gap.trace_id AND after_gap.device = before_gap.device
        AND after_gap.busy_until_ns = before_gap.end_ns
INNER JOIN stg_trace AS trace ON after_gap.trace_id = trace.trace_id
LEFT JOIN steps
    ON
        after_gap.trace_id = steps.trace_id
        AND after_gap.device = steps.device
        AND before_gap.step = steps.step
