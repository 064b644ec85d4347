-- The step of each activity: by its launch; without a launch record, by GPU time, but only where the kernels
-- of a single step run on that device (its copies may run early or late, inside other steps). Otherwise
-- there is no step, with the reason: nothing is invented. Steps found in the order of kernels take
-- everything from their first kernel to the next step's first kernel.
-- grain: trace_id, activity_id
WITH launched AS (
    SELECT activity.*, launch_step.step, launch_step.placed_by, launch_step.no_step_reason
    FROM int_activity_launch AS activity
    LEFT JOIN int_launch_step AS launch_step USING (trace_id, correlation)
),

own_window AS (
    SELECT
        trace_id, device, step,
        coalesce(min(start_ns) FILTER (WHERE kind = 'kernel'), min(start_ns)) AS first_ns,
        coalesce(max(end_ns) FILTER (WHERE kind = 'kernel'), max(end_ns)) AS last_ns
    FROM launched
    WHERE step IS NOT NULL
    GROUP BY trace_id, device, step
),

alone AS (
    SELECT
        trace_id,
        device,
        step,
        least(last_ns, lead(first_ns) OVER (PARTITION BY trace_id, device ORDER BY first_ns, step)) AS to_ns,
        greatest(
            first_ns,
            max(last_ns) OVER (
                PARTITION BY trace_id, device
                ORDER BY first_ns, step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            )
        ) AS from_ns
    FROM own_window
    QUALIFY from_ns < to_ns
),

unlinked AS (SELECT trace_id, device, activity_id, start_ns, end_ns FROM launched WHERE launch_ns IS NULL),

by_time AS (
    SELECT unlinked.trace_id, unlinked.activity_id, alone.step
    FROM unlinked
    ASOF JOIN alone
        ON
            unlinked.trace_id = alone.trace_id
            AND unlinked.device = alone.device
            AND unlinked.start_ns >= alone.from_ns
    WHERE unlinked.end_ns <= alone.to_ns
),

pattern AS (SELECT trace_id, device, step, start_ns FROM int_step_begin WHERE method = 'pattern'),

stepped AS (SELECT DISTINCT trace_id, device FROM pattern),

by_order AS (
    SELECT launched.trace_id, launched.activity_id, pattern.step
    FROM launched
    ASOF JOIN pattern
        ON
            launched.trace_id = pattern.trace_id
            AND launched.device = pattern.device
            AND launched.start_ns >= pattern.start_ns
)

SELECT
    launched.trace_id,
    launched.activity_id,
    coalesce(launched.step, by_time.step, by_order.step) AS step,
    CASE
        WHEN launched.step IS NOT NULL THEN launched.placed_by
        WHEN by_time.step IS NOT NULL THEN 'gpu_time'
        WHEN by_order.step IS NOT NULL THEN 'kernel_order'
    END AS placed_by,
    CASE
        WHEN coalesce(launched.step, by_time.step, by_order.step) IS NOT NULL THEN NULL
        WHEN stepped.device IS NOT NULL THEN 'before_first_step'
        WHEN launched.launch_ns IS NULL THEN 'no_launch_record'
        ELSE coalesce(launched.no_step_reason, 'no_marker')
    END AS no_step_reason
FROM launched
LEFT JOIN by_time USING (trace_id, activity_id)
LEFT JOIN by_order USING (trace_id, activity_id)
LEFT JOIN stepped ON launched.trace_id = stepped.trace_id AND launched.device = stepped.device
