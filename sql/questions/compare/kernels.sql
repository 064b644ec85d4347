-- The kernels of the usual step of a phase by position: before the layers (-1), a layer, after the layers
-- (1000000), or the step as one position (2000000, $is_whole). `calls`: the usual count of the rank with most
-- of it, none where most of its steps lack the kernel. `place_order`: where among the kernels of the
-- position. Units: ms of one call, mean over steps of that rank.
-- grain: position, short_name, role
-- parameters: run_id, source, phase, is_whole
WITH step AS (
    SELECT trace_id, device, step
    FROM steps
    WHERE run_id = $run_id AND source = $source AND phase = $phase AND is_complete
),

name AS (
    SELECT DISTINCT name, short_name
    FROM kernel_breakdown
    WHERE run_id = $run_id AND source = $source
),

kernel AS (
    SELECT
        trace_id,
        device,
        step,
        activity.layer,
        activity.category,
        activity.subcategory,
        activity.role,
        name.short_name,
        activity.start_ns,
        activity.activity_id,
        activity.dur_ns
    FROM activity
    INNER JOIN step USING (trace_id, device, step)
    INNER JOIN name USING (name)
    WHERE activity.run_id = $run_id AND activity.source = $source AND activity.kind = 'kernel'
),

inside AS (
    SELECT trace_id, device, step, min(start_ns) AS layers_ns
    FROM kernel
    WHERE layer IS NOT NULL
    GROUP BY ALL
),

placed AS (
    SELECT
        kernel.*,
        CASE
            WHEN $is_whole THEN 2000000
            WHEN kernel.layer IS NOT NULL THEN kernel.layer
            WHEN kernel.start_ns < inside.layers_ns THEN -1
            ELSE 1000000
        END AS position
    FROM kernel
    LEFT JOIN inside USING (trace_id, device, step)
),

ordered AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY trace_id, device, step, position
            ORDER BY start_ns, activity_id
        ) AS place_order
    FROM placed
),

per_step AS (
    SELECT
        trace_id,
        device,
        step,
        position,
        short_name,
        role,
        min(category) AS category,
        min(subcategory) AS subcategory,
        count(*) AS calls,
        sum(dur_ns) AS ns,
        min(place_order) AS place_order
    FROM ordered
    GROUP BY trace_id, device, step, position, short_name, role
),

size AS (
    SELECT trace_id, device, position, count(DISTINCT step) AS steps
    FROM per_step
    GROUP BY ALL
),

usual AS (
    SELECT
        trace_id,
        device,
        position,
        short_name,
        role,
        min(category) AS category,
        min(subcategory) AS subcategory,
        count(*) AS present,
        quantile_disc(calls, 0.5) AS calls,
        sum(ns) AS ns,
        median(place_order) AS place_order
    FROM per_step
    GROUP BY trace_id, device, position, short_name, role
),

lane AS (
    SELECT
        usual.*,
        usual.ns / size.steps / 1e6 AS ms,
        CASE WHEN usual.present * 2 > size.steps THEN usual.calls ELSE 0 END AS usual_calls
    FROM usual
    INNER JOIN size USING (trace_id, device, position)
)

SELECT
    position,
    short_name,
    category,
    subcategory,
    role,
    place_order,
    usual_calls::BIGINT AS calls,
    ms / usual_calls AS ms
FROM lane
WHERE usual_calls > 0
QUALIFY
    row_number() OVER (
        PARTITION BY position, short_name, role
        ORDER BY usual_calls DESC, trace_id ASC, device ASC
    ) = 1
ORDER BY position, place_order, short_name, role
