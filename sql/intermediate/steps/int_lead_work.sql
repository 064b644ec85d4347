-- What each rank did before each of its collectives, since the previous collective: exposed time by
-- category, and `idle` time in which its device had nothing to run. Only steps with collectives that are
-- compared across ranks; nothing before the first collective of a step. Times in ns.
-- grain: trace_id, device, step, place, category
WITH compared AS (
    SELECT DISTINCT trace_id, device, step FROM int_matched_call
    WHERE refusal IS NULL
),

call AS (
    SELECT trace_id, device, step, place, start_ns, end_ns
    FROM int_collective
    SEMI JOIN compared USING (trace_id, device, step)
    WHERE NOT is_half
),

work AS (
    SELECT rule.trace_id, rule.device, placed.step, rule.start_ns, exposed.exposed_ns, kernel_rule.category
    FROM int_activity AS rule
    INNER JOIN int_activity_step AS placed USING (trace_id, activity_id)
    INNER JOIN kernel_rule USING (rule_id)
    INNER JOIN int_exposed AS exposed
        ON rule.trace_id = exposed.trace_id AND rule.activity_id = exposed.activity_id
    WHERE NOT is_communication(kernel_rule.category) AND exposed.exposed_ns > 0
),

busy AS (
    SELECT
        call.trace_id,
        call.device,
        call.step,
        call.place + 1 AS place,
        work.category,
        sum(work.exposed_ns)::BIGINT AS work_ns
    FROM work
    ASOF JOIN call
        ON
            work.trace_id = call.trace_id
            AND work.device = call.device
            AND work.step = call.step
            AND work.start_ns >= call.start_ns
    GROUP BY ALL
),

whole AS (
    SELECT trace_id, device, step, place, sum(work_ns)::BIGINT AS work_ns
    FROM busy
    GROUP BY trace_id, device, step, place
),

gap AS (
    SELECT
        trace_id,
        device,
        step,
        place,
        start_ns - lag(end_ns) OVER (PARTITION BY trace_id, device, step ORDER BY place) AS gap_ns
    FROM call
)

SELECT trace_id, device, step, place, category, work_ns FROM busy
UNION ALL
SELECT
    gap.trace_id,
    gap.device,
    gap.step,
    gap.place,
    'idle' AS category,
    gap.gap_ns - coalesce(whole.work_ns, 0) AS work_ns
FROM gap
LEFT JOIN whole USING (trace_id, device, step, place)
WHERE gap.gap_ns > coalesce(whole.work_ns, 0)
