-- The step that made each launch: the last step begun before it on the same thread (an annotation, or a graph replay where
-- there are none), else (a thread that begins no steps) on any thread. Sampling is launched behind the annotation's end, so a
-- step lasts until the next begins. But a forward pass of its own behind the end (an unannotated one) is not the step's: from
-- the first graph replay there that is at least half as large as the trace's usual replays, or, launched without graphs, the
-- whole tail if it holds more than half of what steps usually hold. Smaller replays are drafts and stay.
-- grain: trace_id, correlation
WITH launch AS (
    SELECT
        trace_id, correlation, any_value(launch_ns) AS launch_ns, any_value(pid) AS pid, any_value(tid) AS tid,
        any_value(is_graph) AS is_graph, count(*) AS activities
    FROM int_activity_launch
    WHERE launch_ns IS NOT NULL
    GROUP BY trace_id, correlation
),

marker AS (SELECT trace_id, step, pid, tid, start_ns, end_ns FROM int_step_begin WHERE method <> 'pattern'),

thread AS (SELECT DISTINCT trace_id, pid, tid FROM marker),

marked AS (SELECT DISTINCT trace_id FROM thread),

same_thread AS (
    SELECT launch.*, marker.step, marker.end_ns, 'launch_same_thread' AS placed_by
    FROM launch
    INNER JOIN thread USING (trace_id, pid, tid)
    ASOF LEFT JOIN marker
        ON
            launch.trace_id = marker.trace_id AND launch.pid = marker.pid AND launch.tid = marker.tid
            AND launch.launch_ns >= marker.start_ns
),

other_thread AS (
    SELECT launch.*, marker.step, marker.end_ns, 'launch_time' AS placed_by
    FROM launch
    ANTI JOIN thread USING (trace_id, pid, tid)
    ASOF LEFT JOIN marker
        ON launch.trace_id = marker.trace_id AND launch.launch_ns >= marker.start_ns
),

placed AS (
    SELECT *, launch_ns >= end_ns AS is_tail FROM same_thread
    UNION ALL
    SELECT *, launch_ns >= end_ns AS is_tail FROM other_thread
),

inside AS (
    SELECT trace_id, step, sum(activities) AS activities, max(activities) FILTER (WHERE is_graph) AS largest_replay
    FROM placed
    WHERE step IS NOT NULL AND NOT is_tail
    GROUP BY trace_id, step
),

usual AS (
    SELECT trace_id, median(activities) AS activities, median(largest_replay) AS largest_replay
    FROM inside
    GROUP BY trace_id
),

tail AS (
    SELECT
        placed.trace_id,
        placed.step,
        min(placed.launch_ns) AS first_ns,
        sum(placed.activities) FILTER (WHERE NOT placed.is_graph) AS activities,
        min(placed.launch_ns) FILTER (WHERE placed.is_graph AND placed.activities >= usual.largest_replay / 2) AS replay_ns
    FROM placed
    INNER JOIN usual USING (trace_id)
    WHERE placed.is_tail
    GROUP BY placed.trace_id, placed.step
),

foreign_pass AS (
    SELECT
        tail.trace_id,
        tail.step,
        coalesce(tail.replay_ns, CASE WHEN tail.activities > usual.activities / 2 THEN tail.first_ns END) AS from_ns
    FROM tail
    INNER JOIN usual USING (trace_id)
)

SELECT
    placed.trace_id,
    placed.correlation,
    CASE WHEN NOT coalesce(placed.launch_ns >= foreign_pass.from_ns, FALSE) THEN placed.step END AS step,
    placed.placed_by,
    CASE
        WHEN marked.trace_id IS NULL THEN 'no_marker'
        WHEN placed.step IS NULL THEN 'before_first_step'
        WHEN placed.launch_ns >= foreign_pass.from_ns THEN 'unannotated_pass'
    END AS no_step_reason
FROM placed
LEFT JOIN marked USING (trace_id)
LEFT JOIN foreign_pass
    ON placed.trace_id = foreign_pass.trace_id AND placed.step = foreign_pass.step AND placed.is_tail
