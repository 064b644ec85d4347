-- The step that made each launch: the last step that began before it on the same thread (an annotation, a
-- graph replay where there are none, or an unmarked pass), else, on a thread that begins no steps, on any
-- thread. Sampling is launched after the annotation's end, so a step lasts until the next one begins.
-- grain: trace_id, correlation
WITH begin_at AS (SELECT trace_id, step, pid, tid, start_ns FROM int_step_begin WHERE method <> 'pattern'),

thread AS (SELECT DISTINCT trace_id, pid, tid FROM begin_at),

marked AS (SELECT DISTINCT trace_id FROM thread),

same_thread AS (
    SELECT launch.trace_id, launch.correlation, begin_at.step, 'launch_same_thread' AS placed_by
    FROM int_launch AS launch
    INNER JOIN thread USING (trace_id, pid, tid)
    ASOF LEFT JOIN begin_at
        ON
            launch.trace_id = begin_at.trace_id AND launch.pid = begin_at.pid AND launch.tid = begin_at.tid
            AND launch.launch_ns >= begin_at.start_ns
),

other_thread AS (
    SELECT launch.trace_id, launch.correlation, begin_at.step, 'launch_time' AS placed_by
    FROM int_launch AS launch
    ANTI JOIN thread USING (trace_id, pid, tid)
    ASOF LEFT JOIN begin_at
        ON launch.trace_id = begin_at.trace_id AND launch.launch_ns >= begin_at.start_ns
),

placed AS (
    SELECT * FROM same_thread
    UNION ALL
    SELECT * FROM other_thread
)

SELECT
    placed.trace_id,
    placed.correlation,
    placed.step,
    placed.placed_by,
    CASE
        WHEN marked.trace_id IS NULL THEN 'no_marker'
        WHEN placed.step IS NULL THEN 'before_first_step'
    END AS no_step_reason
FROM placed
LEFT JOIN marked USING (trace_id)
