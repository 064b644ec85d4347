-- All all-reduces of a rank, in steps or not, beside the usual number of a step and the steps that ran;
-- difference: what some steps hold more or less than the usual number.
-- grain: source, rank, trace_id, device
-- parameters: run_id
WITH half AS (
    SELECT trace_id, activity_id
    FROM collectives
    WHERE run_id = $run_id AND is_half
),

call AS (
    SELECT
        activity.source,
        activity.trace_id,
        activity.rank,
        activity.device,
        activity.step,
        count(*) AS calls
    FROM activity
    ANTI JOIN half USING (trace_id, activity_id)
    WHERE activity.run_id = $run_id AND activity.category = 'allreduce'
    GROUP BY ALL
),

step AS (
    SELECT
        trace_id,
        device,
        step,
        steps.phase,
        steps.label IS NOT NULL AS is_annotated,
        coalesce(call.calls, 0) AS calls
    FROM steps
    LEFT JOIN call USING (trace_id, device, step)
    WHERE steps.run_id = $run_id AND steps.phase <> 'empty'
),

frequency AS (
    SELECT trace_id, device, calls, count(*) AS times
    FROM step
    GROUP BY ALL
),

usual AS (
    SELECT trace_id, device, arg_min(calls, (-times, calls)) AS calls_mode
    FROM frequency
    WHERE calls > 0
    GROUP BY ALL
),

total AS (
    SELECT
        source,
        trace_id,
        rank,
        device,
        sum(calls)::BIGINT AS all_reduces,
        coalesce(sum(calls) FILTER (WHERE step IS NULL), 0)::BIGINT AS in_no_step
    FROM call
    GROUP BY ALL
)

SELECT
    total.source,
    total.rank,
    total.trace_id,
    total.all_reduces,
    total.in_no_step,
    usual.calls_mode,
    count(*) FILTER (WHERE step.phase = 'decode') AS decode_steps,
    count(*) FILTER (WHERE step.phase <> 'decode') AS other_steps,
    count(*) FILTER (WHERE step.is_annotated) AS annotated_steps,
    sum(step.calls - usual.calls_mode)::BIGINT AS difference,
    count(*) FILTER (WHERE step.calls <> usual.calls_mode) AS odd_steps
FROM total
INNER JOIN usual USING (trace_id, device)
INNER JOIN step USING (trace_id, device)
GROUP BY
    total.source,
    total.rank,
    total.trace_id,
    total.device,
    total.all_reduces,
    total.in_no_step,
    usual.calls_mode
ORDER BY ALL
