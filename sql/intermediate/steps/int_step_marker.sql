-- Annotations that mark a forward pass, with what their text says; one level per trace, nested repeats left
-- out. is_cut: still open when recording stopped, and the last of its thread.
-- grain: trace_id, step
WITH parsed AS (
    SELECT DISTINCT name, parse_step_marker(name) AS marker
    FROM stg_annotation
),

marked AS (
    SELECT annotation.*, parsed.marker
    FROM stg_annotation AS annotation
    INNER JOIN parsed USING (name)
    WHERE parsed.marker IS NOT NULL
),

one_level AS (
    SELECT * FROM marked
    QUALIFY marker.level = min(marker.level) OVER (PARTITION BY marked.trace_id)
),

-- A range that is still open when recording stops ends where the next of its thread begins.
closed AS (
    SELECT
        * REPLACE (
            CASE
                WHEN is_open
                    THEN
                        least(
                            end_ns,
                            lead(start_ns)
                                OVER (PARTITION BY trace_id, pid, tid ORDER BY start_ns ASC, end_ns DESC)
                        )
                ELSE end_ns
            END AS end_ns
        )
    FROM one_level
),

outermost AS (
    SELECT * FROM closed
    QUALIFY coalesce(
        start_ns >= max(end_ns) OVER (
            PARTITION BY trace_id, pid, tid
            ORDER BY start_ns ASC, end_ns DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ),
        TRUE
    )
)

SELECT
    outermost.trace_id,
    row_number()
        OVER (PARTITION BY outermost.trace_id ORDER BY outermost.start_ns, outermost.pid, outermost.tid)
    - 1 AS step,
    outermost.name AS label,
    outermost.pid,
    outermost.tid,
    outermost.start_ns,
    outermost.end_ns,
    marker.marker_id,
    marker.engine,
    marker.confidence,
    marker.part,
    outermost.is_open
    AND outermost.start_ns
    = max(outermost.start_ns) OVER (PARTITION BY outermost.trace_id, outermost.pid, outermost.tid) AS is_cut,
    marker.context_requests,
    marker.scheduled_context_tokens,
    marker.generation_requests,
    marker.generation_tokens,
    marker.graph_tokens,
    marker.kv_tokens,
    CASE
        WHEN marker.phase_rule NOT IN ('counts', 'new_cached') THEN marker.phase_rule
        WHEN marker.context_requests > 0 AND marker.generation_requests > 0 THEN 'mixed'
        WHEN marker.context_requests > 0 THEN 'prefill'
        WHEN marker.generation_requests > 0 AND marker.generation_tokens > marker.generation_requests
            THEN 'verify'
        WHEN marker.generation_requests > 0 THEN 'decode'
        ELSE 'unknown'
    END AS phase
FROM outermost
