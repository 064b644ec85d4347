-- Where steps begin, by the most trusted method that a trace allows: annotations, else graph replays, else
-- the order of kernels; with the unmarked passes between them, numbered by time. `device` is set where the
-- method works per device (pattern); NULL: the step is the whole trace's.
-- grain: trace_id, device, step
WITH annotated AS (
    SELECT
        marker.trace_id,
        NULL::INTEGER AS device,
        marker.step,
        CASE WHEN trace.source = 'nsys' THEN 'nvtx' ELSE 'annotation' END AS method,
        marker.label,
        marker.pid,
        marker.tid,
        marker.start_ns,
        marker.end_ns,
        marker.phase,
        marker.confidence,
        marker.is_cut,
        marker.context_requests,
        marker.scheduled_context_tokens,
        marker.generation_requests,
        marker.generation_tokens,
        marker.graph_tokens,
        marker.kv_tokens
    FROM int_marked_pass AS marker
    INNER JOIN stg_trace AS trace USING (trace_id)
),

replayed AS (
    SELECT
        trace_id,
        NULL::INTEGER AS device,
        step,
        'graph' AS method,
        pid,
        tid,
        start_ns,
        end_ns,
        phase,
        confidence
    FROM int_replay_pass
    ANTI JOIN annotated USING (trace_id)
),

repeated AS (
    SELECT trace_id, device, step, 'pattern' AS method, start_ns, phase, confidence
    FROM int_pattern_pass
    ANTI JOIN annotated USING (trace_id)
    ANTI JOIN replayed USING (trace_id)
),

used AS (
    SELECT trace_id, method FROM annotated
    UNION
    SELECT trace_id, method FROM replayed
),

unmarked AS (
    SELECT
        foreign_pass.trace_id,
        NULL::INTEGER AS device,
        used.method,
        foreign_pass.pid,
        foreign_pass.tid,
        foreign_pass.start_ns,
        foreign_pass.start_ns AS end_ns,
        foreign_pass.phase,
        -- Its size shows that it is a pass; nothing shows what it served.
        0.6::DOUBLE AS confidence
    FROM int_foreign_pass AS foreign_pass
    INNER JOIN used USING (trace_id)
),

either AS (
    SELECT * FROM annotated
    UNION ALL BY NAME
    SELECT * FROM replayed
    UNION ALL BY NAME
    SELECT * FROM repeated
    UNION ALL BY NAME
    SELECT * FROM unmarked
)

SELECT
    * EXCLUDE (step),
    row_number() OVER (PARTITION BY trace_id, device ORDER BY start_ns, pid, tid) - 1 AS step
FROM either
