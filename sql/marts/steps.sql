-- One forward pass on one device of one trace: what was scheduled, and where its time went, in ns. Exactly,
-- for every row with a wall: wall = exposed - exposed_outside + borrowed + idle_inside + gap_after.
-- grain: trace_id, device, step
WITH device_of AS (
    SELECT trace_id, min(device) AS device FROM stg_activity GROUP BY trace_id
),

exposed AS (
    SELECT placed.trace_id, exposed.device, placed.step, sum(exposed.exposed_ns)::BIGINT AS exposed_ns
    FROM int_exposed AS exposed
    INNER JOIN int_activity_step AS placed USING (trace_id, activity_id)
    WHERE placed.step IS NOT NULL
    GROUP BY ALL
),

lost AS (
    SELECT
        time_line.trace_id,
        time_line.device,
        time_line.step,
        lost.step IS NOT NULL AS is_lost,
        coalesce(lead(lost.step) OVER in_order IS NOT NULL, FALSE) AS is_next_lost,
        row_number() OVER in_order = 1 AS is_first,
        time_line.next_ns IS NULL AS is_last
    FROM int_step_window AS time_line
    LEFT JOIN int_step_lost AS lost USING (trace_id, device, step)
    WINDOW
        in_order AS (
            PARTITION BY time_line.trace_id, time_line.device ORDER BY time_line.start_ns, time_line.step
        )
),

step AS (
    SELECT
        begin_at.* EXCLUDE (device),
        coalesce(time_line.device, begin_at.device, device_of.device) AS device,
        time_line.* EXCLUDE (trace_id, device, step, start_ns, end_ns, next_ns),
        time_line.start_ns AS gpu_start_ns,
        time_line.end_ns AS gpu_end_ns,
        -- A step with lost records, or before one, has no wall: its own end or the next one's start may be
        -- missing.
        CASE
            WHEN NOT lost.is_lost AND NOT lost.is_next_lost AND burst.bursts IS NULL THEN time_line.next_ns
        END AS next_ns,
        time_line.next_ns AS following_ns,
        coalesce(lost.is_lost, FALSE) AS is_lost,
        burst.bursts IS NOT NULL AS is_burst,
        lost.is_first,
        lost.is_last
    FROM int_step_begin AS begin_at
    INNER JOIN device_of USING (trace_id)
    LEFT JOIN int_step_window AS time_line
        ON
            begin_at.trace_id = time_line.trace_id AND begin_at.step = time_line.step
            AND coalesce(begin_at.device = time_line.device, TRUE)
    LEFT JOIN lost
        ON
            time_line.trace_id = lost.trace_id
            AND time_line.device = lost.device
            AND time_line.step = lost.step
    LEFT JOIN int_burst AS burst ON time_line.trace_id = burst.trace_id AND time_line.device = burst.device
),

timed AS (
    SELECT
        step.*,
        step.next_ns - step.gpu_start_ns AS wall_ns,
        cover.next_covered_ns - cover.start_covered_ns AS covered_ns,
        coalesce(inside.inside_ns, 0) AS inside_ns,
        exposed.exposed_ns,
        (step.gpu_end_ns - step.gpu_start_ns)
        - (cover.end_covered_ns - cover.start_covered_ns) AS span_idle_ns,
        CASE
            WHEN step.gpu_end_ns < step.next_ns
                THEN (step.next_ns - step.gpu_end_ns) - (cover.next_covered_ns - cover.end_covered_ns)
            WHEN step.next_ns IS NOT NULL THEN 0
        END AS gap_after_ns
    FROM step
    LEFT JOIN int_step_cover AS cover
        ON step.trace_id = cover.trace_id AND step.device = cover.device AND step.step = cover.step
    LEFT JOIN int_step_inside AS inside
        ON step.trace_id = inside.trace_id AND step.device = inside.device AND step.step = inside.step
    LEFT JOIN exposed
        ON step.trace_id = exposed.trace_id AND step.device = exposed.device AND step.step = exposed.step
)

SELECT
    trace.run_id,
    trace.source,
    timed.trace_id,
    trace.rank,
    timed.device,
    timed.step,
    match.match_id,
    CASE WHEN timed.activities IS NULL THEN 'empty' ELSE timed.phase END AS phase,
    timed.method,
    CASE
        WHEN timed.method <> 'pattern' AND timed.placed_by_time * 2 > timed.activities
            THEN least(timed.confidence, 0.8)
        ELSE timed.confidence
    END AS confidence,
    timed.label,
    timed.context_requests,
    timed.scheduled_context_tokens,
    timed.generation_requests,
    timed.generation_tokens,
    coalesce(tokens.graph_tokens, timed.graph_tokens) AS graph_tokens,
    timed.kv_tokens,
    coalesce(timed.graph_launches, 0) AS graph_launches,
    coalesce(timed.activities, 0) AS activities,
    coalesce(timed.kernels, 0) AS kernels,
    timed.gpu_start_ns AS start_ns,
    timed.gpu_end_ns AS end_ns,
    timed.gpu_end_ns - timed.gpu_start_ns AS span_ns,
    timed.wall_ns,
    lead(timed.phase)
        OVER (PARTITION BY timed.trace_id, timed.device ORDER BY timed.gpu_start_ns NULLS LAST, timed.step)
        AS next_phase,
    coalesce(timed.busy_ns, 0) AS busy_ns,
    coalesce(timed.exposed_ns, 0) AS exposed_ns,
    round(timed.busy_ns / nullif(timed.exposed_ns, 0), 6) AS overlap_ratio,
    CASE WHEN timed.wall_ns IS NOT NULL THEN timed.exposed_ns - timed.inside_ns END AS exposed_outside_ns,
    timed.covered_ns - timed.inside_ns AS borrowed_ns,
    CASE
        WHEN timed.wall_ns IS NOT NULL THEN timed.wall_ns - timed.covered_ns - timed.gap_after_ns
        WHEN NOT timed.is_lost AND NOT timed.is_burst THEN timed.span_idle_ns
    END AS idle_inside_ns,
    timed.gap_after_ns,
    CASE WHEN timed.gap_after_ns > 0 THEN coalesce(cause.gap_cause, 'unknown') END AS gap_cause,
    timed.launch_lag_p50_ns,
    timed.activities IS NOT NULL
    AND skew.step IS NULL
    AND NOT timed.is_lost
    AND NOT timed.is_burst
    AND timed.is_cut IS NOT TRUE AS is_complete,
    CASE
        WHEN timed.activities IS NULL THEN 'no_gpu_work'
        WHEN timed.is_burst THEN 'unusable_timestamps'
        WHEN timed.is_lost AND timed.is_first THEN 'begins_before_capture'
        WHEN timed.is_cut OR (timed.is_lost AND timed.is_last) THEN 'ends_after_capture'
        WHEN timed.is_lost THEN 'records_lost'
        WHEN skew.step IS NOT NULL THEN 'capture_start_skew'
    END AS incomplete_reason
FROM timed
INNER JOIN stg_trace AS trace USING (trace_id)
LEFT JOIN int_step_match AS match
    ON timed.trace_id = match.trace_id AND timed.device = match.device AND timed.step = match.step
LEFT JOIN int_step_tokens AS tokens ON timed.trace_id = tokens.trace_id AND timed.step = tokens.step
LEFT JOIN int_start_skew AS skew ON timed.trace_id = skew.trace_id AND timed.step = skew.step
LEFT JOIN int_gap_cause AS cause
    ON timed.trace_id = cause.trace_id AND timed.device = cause.device AND timed.next_ns = cause.start_ns
