-- severity: fail
-- means: An activity still runs long after the next launch on its own stream has ended, which is impossible:
--     a duration is corrupt.
-- do: Record again. Programmatic launches, which begin early but never end early, and nodes of one graph
--     replay, which may run side by side, are not counted.
WITH long_stream AS (
    -- Only an activity of that length can outlast the next launch by it: most streams have none.
    SELECT trace_id, device, stream
    FROM activity
    WHERE dur_ns > stream_overlap_ns()
    GROUP BY trace_id, device, stream
),

ordered AS (
    SELECT
        trace_id,
        device,
        stream,
        activity_id,
        start_ns,
        start_ns + dur_ns AS end_ns,
        coalesce(correlation = 0 OR correlation IS DISTINCT FROM lag(correlation) OVER in_order, TRUE)
            AS is_new
    FROM activity
    SEMI JOIN long_stream USING (trace_id, device, stream)
    WHERE kind <> 'graph' AND stream IS NOT NULL
    WINDOW in_order AS (PARTITION BY trace_id, device, stream ORDER BY start_ns, activity_id)
),

numbered AS (
    SELECT
        *,
        sum(is_new::INTEGER)
            OVER (PARTITION BY trace_id, device, stream ORDER BY start_ns, activity_id) AS launch_number
    FROM ordered
),

launched AS (
    SELECT
        trace_id,
        device,
        stream,
        launch_number,
        max(end_ns) AS end_ns,
        arg_max(activity_id, end_ns) AS activity_id
    FROM numbered
    GROUP BY trace_id, device, stream, launch_number
),

paired AS (
    SELECT
        trace_id,
        activity_id,
        end_ns
        - lead(end_ns) OVER (PARTITION BY trace_id, device, stream ORDER BY launch_number) AS outlasts_ns
    FROM launched
)

SELECT
    activity.trace_id,
    activity.activity_id,
    left(activity.name, 80) AS name,
    activity.dur_ns,
    paired.outlasts_ns
FROM paired
INNER JOIN activity USING (trace_id, activity_id)
WHERE paired.outlasts_ns > stream_overlap_ns()
