-- severity: warn
-- means: Complete decode steps of one device with the same marker ran different kernels of the model than
--     most of them.
-- do: Look at the steps of the sample: more kernels than usual mean that work of another pass is booked
--     here; other differences, that the batch changed.
WITH model_name AS (
    SELECT DISTINCT name
    FROM activity
    WHERE category IN (
        'allreduce',
        'all_to_all',
        'collective',
        'attention',
        'moe_gemm',
        'gemm',
        'routing',
        'norm',
        'activation',
        'rope',
        'kv_cache'
    )
),

kernel AS (
    SELECT
        activity.source,
        activity.trace_id,
        activity.device,
        activity.step,
        coalesce(steps.label, '') AS label,
        activity.name,
        count(*) AS calls
    FROM activity
    INNER JOIN model_name USING (name)
    INNER JOIN steps USING (trace_id, device, step)
    WHERE
        steps.is_complete
        AND steps.phase IN ('decode', 'verify')
        AND steps.method <> 'pattern'
        AND activity.kind = 'kernel'
    GROUP BY ALL
),

step AS (
    SELECT
        source, trace_id, device, step, label, sum(calls)::BIGINT AS kernels,
        hash(list((name, calls) ORDER BY name)) AS multiset
    FROM kernel
    GROUP BY source, trace_id, device, step, label
),

variant AS (
    SELECT trace_id, device, label, multiset, any_value(kernels) AS kernels, count(*) AS times
    FROM step
    GROUP BY trace_id, device, label, multiset
),

usual AS (
    SELECT
        trace_id,
        device,
        label,
        arg_max(multiset, (times, multiset)) AS multiset,
        arg_max(kernels, (times, multiset)) AS usual_kernels
    FROM variant
    GROUP BY trace_id, device, label
    HAVING sum(times) >= lost_record_peers() AND max(times) * 2 > sum(times)
)

SELECT step.trace_id, step.device, step.step, step.label, step.kernels, usual.usual_kernels
FROM step
INNER JOIN usual USING (trace_id, device, label)
WHERE step.multiset <> usual.multiset
