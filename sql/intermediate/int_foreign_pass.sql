-- Forward passes that nothing marks, behind the end of a marked step (an idle data-parallel rank runs dummy batches without an
-- annotation): a graph replay there that is at least half as large as the trace's usual replays; or, launched without graphs,
-- the whole tail if it holds more than half of what steps usually hold. Smaller replays are drafts and stay with their step,
-- as does sampling, which is launched behind the annotation's end.
-- grain: trace_id, start_ns
WITH marker AS (
    SELECT trace_id, step, pid, tid, start_ns, end_ns, 'dummy' AS phase FROM int_step_marker
    UNION ALL
    SELECT replay.trace_id, replay.step, replay.pid, replay.tid, replay.start_ns, replay.end_ns, 'unknown' AS phase
    FROM int_replay_pass AS replay
    ANTI JOIN int_step_marker USING (trace_id)
),

thread AS (SELECT DISTINCT trace_id, pid, tid FROM marker),

same_thread AS (
    SELECT launch.*, marker.step, marker.end_ns, marker.phase
    FROM int_launch AS launch
    INNER JOIN thread USING (trace_id, pid, tid)
    ASOF JOIN marker
        ON
            launch.trace_id = marker.trace_id AND launch.pid = marker.pid AND launch.tid = marker.tid
            AND launch.launch_ns >= marker.start_ns
),

other_thread AS (
    SELECT launch.*, marker.step, marker.end_ns, marker.phase
    FROM int_launch AS launch
    ANTI JOIN thread USING (trace_id, pid, tid)
    ASOF JOIN marker ON launch.trace_id = marker.trace_id AND launch.launch_ns >= marker.start_ns
),

placed AS (
    SELECT *, launch_ns >= end_ns AS is_tail FROM same_thread
    UNION ALL
    SELECT *, launch_ns >= end_ns AS is_tail FROM other_thread
),

inside AS (
    SELECT trace_id, step, sum(activities) AS activities, max(activities) FILTER (WHERE is_graph) AS largest_replay
    FROM placed
    WHERE NOT is_tail
    GROUP BY trace_id, step
),

usual AS (
    SELECT trace_id, median(activities) AS activities, median(largest_replay) AS largest_replay
    FROM inside
    GROUP BY trace_id
),

tail AS (
    SELECT placed.*, placed.is_graph AND placed.activities >= usual.largest_replay / 2 AS is_pass, usual.activities AS usual_activities
    FROM placed
    INNER JOIN usual USING (trace_id)
    WHERE placed.is_tail
),

eager AS (
    SELECT
        trace_id,
        arg_min(pid, launch_ns) AS pid,
        arg_min(tid, launch_ns) AS tid,
        min(launch_ns) AS start_ns,
        any_value(phase) AS phase
    FROM tail
    GROUP BY trace_id, step
    HAVING NOT bool_or(coalesce(is_pass, FALSE)) AND sum(activities) FILTER (WHERE NOT is_graph) > any_value(usual_activities) / 2
)

SELECT trace_id, pid, tid, launch_ns AS start_ns, phase
FROM tail
WHERE is_pass
UNION ALL
SELECT trace_id, pid, tid, start_ns, phase
FROM eager
