-- Forward passes without a marker, after the end of a marked step (an idle data-parallel rank runs dummy
-- batches without an annotation): a graph replay that is at least half as large as the trace's usual
-- replays; or, launched without graphs, a tail with attention (where steps have any) of more than half of
-- what steps usually launch, and at least eager_pass_activities. Smaller replays are drafts and stay with
-- their step, as does sampling, which is launched after the annotation's end: an eager pass begins at the
-- first kernel of a model after the sampling.
-- grain: trace_id, start_ns
WITH marker AS (
    SELECT trace_id, step, pid, tid, start_ns, end_ns, 'dummy' AS phase FROM int_marked_pass
    UNION ALL
    SELECT
        replay.trace_id,
        replay.step,
        replay.pid,
        replay.tid,
        replay.start_ns,
        replay.end_ns,
        'unknown' AS phase
    FROM int_replay_pass AS replay
    ANTI JOIN int_marked_pass USING (trace_id)
),

-- What eager launches do: attention identifies a forward pass, sampling a step's own tail.
work AS (
    SELECT
        rule.trace_id,
        rule.correlation,
        bool_or(kernel_rule.category = 'attention') AS is_attention,
        bool_or(kernel_rule.category = 'sampling') AS is_sampling,
        bool_or(
            kernel_rule.category IN (
                'embedding', 'norm', 'gemm', 'attention', 'rope', 'kv_cache', 'allreduce'
            )
        ) AS is_model
    FROM int_activity AS rule
    INNER JOIN kernel_rule USING (rule_id)
    WHERE rule.launch_ns IS NOT NULL
    GROUP BY rule.trace_id, rule.correlation
),

launch AS (SELECT * FROM int_launch LEFT JOIN work USING (trace_id, correlation)),

thread AS (SELECT DISTINCT trace_id, pid, tid FROM marker),

same_thread AS (
    SELECT launch.*, marker.step, marker.end_ns, marker.phase
    FROM launch
    INNER JOIN thread USING (trace_id, pid, tid)
    ASOF JOIN marker
        ON
            launch.trace_id = marker.trace_id AND launch.pid = marker.pid AND launch.tid = marker.tid
            AND launch.launch_ns >= marker.start_ns
),

other_thread AS (
    SELECT launch.*, marker.step, marker.end_ns, marker.phase
    FROM launch
    ANTI JOIN thread USING (trace_id, pid, tid)
    ASOF JOIN marker ON launch.trace_id = marker.trace_id AND launch.launch_ns >= marker.start_ns
),

placed AS (
    SELECT *, launch_ns >= end_ns AS is_tail FROM same_thread
    UNION ALL
    SELECT *, launch_ns >= end_ns AS is_tail FROM other_thread
),

inside AS (
    SELECT
        trace_id,
        step,
        sum(activities) AS activities,
        max(activities) FILTER (WHERE is_graph) AS largest_replay,
        bool_or(is_attention) AS has_attention
    FROM placed
    WHERE NOT is_tail
    GROUP BY trace_id, step
),

usual AS (
    SELECT
        trace_id,
        median(activities) AS activities,
        median(largest_replay) AS largest_replay,
        coalesce(bool_or(has_attention), FALSE) AS has_attention
    FROM inside
    GROUP BY trace_id
),

tail AS (
    SELECT
        placed.*,
        placed.is_graph AND placed.activities >= usual.largest_replay / 2 AS is_pass,
        usual.activities AS usual_activities,
        usual.has_attention AS is_attention_usual,
        min(placed.launch_ns) FILTER (WHERE placed.is_attention) OVER in_tail AS attention_ns
    FROM placed
    INNER JOIN usual USING (trace_id)
    WHERE placed.is_tail
    WINDOW in_tail AS (PARTITION BY placed.trace_id, placed.step)
),

after_sampling AS (
    SELECT
        *,
        max(launch_ns) FILTER (WHERE is_sampling AND launch_ns < attention_ns)
            OVER (PARTITION BY trace_id, step) AS sampling_ns
    FROM tail
),

eager AS (
    SELECT
        trace_id,
        arg_min(pid, launch_ns) AS pid,
        arg_min(tid, launch_ns) AS tid,
        coalesce(min(launch_ns) FILTER (WHERE launch_ns > sampling_ns AND is_model), min(launch_ns))
            AS start_ns,
        any_value(phase) AS phase
    FROM after_sampling
    GROUP BY trace_id, step
    HAVING
        NOT bool_or(coalesce(is_pass, FALSE))
        AND sum(activities) FILTER (WHERE NOT is_graph) > any_value(usual_activities) / 2
        AND sum(activities) FILTER (WHERE NOT is_graph) >= eager_pass_activities()
        AND (count(attention_ns) > 0 OR NOT any_value(is_attention_usual))
)

SELECT trace_id, pid, tid, launch_ns AS start_ns, phase
FROM tail
WHERE is_pass
UNION ALL
SELECT trace_id, pid, tid, start_ns, phase
FROM eager
