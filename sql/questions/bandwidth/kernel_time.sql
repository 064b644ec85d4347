-- Time of a step in which at least one kernel that reads a part of the memory runs: the median over complete
-- steps and ranks. Kernels that overlap count once. Units: us.
-- grain: part
-- parameters: run_id, source, phase
WITH reader (part, category) AS (
    VALUES
    ('routed experts', 'moe_gemm'),
    ('other weights', 'gemm'),
    ('KV cache', 'attention'),
    ('all of it', 'moe_gemm'),
    ('all of it', 'gemm'),
    ('all of it', 'attention')
),

step AS (
    SELECT trace_id, device, step
    FROM steps
    WHERE run_id = $run_id AND source = $source AND phase = $phase AND is_complete
),

kernel AS (
    SELECT
        reader.part,
        trace_id,
        device,
        step,
        activity.start_ns,
        activity.start_ns + activity.dur_ns AS end_ns,
        max(activity.start_ns + activity.dur_ns) OVER (
            PARTITION BY reader.part, trace_id, device, step
            ORDER BY activity.start_ns, activity.activity_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS busy_until_ns
    FROM activity
    INNER JOIN reader USING (category)
    INNER JOIN step USING (trace_id, device, step)
    WHERE activity.run_id = $run_id
),

by_step AS (
    SELECT
        part,
        trace_id,
        device,
        step,
        sum(greatest(0, end_ns - greatest(start_ns, coalesce(busy_until_ns, start_ns)))) AS ns
    FROM kernel
    GROUP BY ALL
)

SELECT part, median(ns) / 1e3 AS us
FROM by_step
GROUP BY part
