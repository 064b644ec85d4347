-- Marked steps, usually of one marker each. Several markers are one step (1) inside one scope that an engine
-- puts around an iteration; (2) in a thread that verifies drafts: the draft passes before the verifying
-- pass, that pass, and what the draft model runs after it; (3) where a graph is split into pieces that are
-- each marked like the whole: same text, and sampling only after every k-th piece, k >= 2, throughout the
-- thread (the first and the last step may be incomplete).
-- grain: trace_id, step
WITH scope AS (
    SELECT trace_id, pid, tid, start_ns, end_ns FROM stg_annotation WHERE is_step_scope(name)
),

scoped AS (
    SELECT
        marker.*,
        CASE WHEN marker.end_ns <= scope.end_ns THEN scope.start_ns END AS scope_ns,
        coalesce(
            bool_or(marker.part = 'verify') OVER (PARTITION BY marker.trace_id, marker.pid, marker.tid), FALSE
        ) AS is_speculating
    FROM int_step_marker AS marker
    ASOF LEFT JOIN scope
        ON
            marker.trace_id = scope.trace_id
            AND marker.pid = scope.pid
            AND marker.tid = scope.tid
            AND marker.start_ns >= scope.start_ns
),

sampling AS (
    SELECT rule.trace_id, rule.pid, rule.tid, rule.launch_ns
    FROM int_activity AS rule
    INNER JOIN kernel_rule USING (rule_id)
    WHERE kernel_rule.category = 'sampling' AND rule.launch_ns IS NOT NULL
),

sampled AS (
    SELECT DISTINCT marker.trace_id, marker.step
    FROM sampling
    ASOF JOIN int_step_marker AS marker
        ON
            sampling.trace_id = marker.trace_id AND sampling.pid = marker.pid AND sampling.tid = marker.tid
            AND sampling.launch_ns >= marker.start_ns
),

before_it AS (
    SELECT
        scoped.*,
        lag(scoped.step) OVER in_thread AS last_step,
        lag(scoped.scope_ns) OVER in_thread AS last_scope_ns,
        lag(scoped.part) OVER in_thread AS last_part,
        scoped.part = 'before'
        AND scoped.label = lag(scoped.label) OVER in_thread
        AND lag(sampled.step) OVER in_thread IS NULL AS is_piece
    FROM scoped
    LEFT JOIN sampled USING (trace_id, step)
    WINDOW in_thread AS (PARTITION BY scoped.trace_id, scoped.pid, scoped.tid ORDER BY scoped.start_ns)
),

pieced AS (
    SELECT *, sum((NOT coalesce(is_piece, FALSE))::INTEGER) OVER in_thread AS whole
    FROM before_it
    WINDOW in_thread AS (PARTITION BY trace_id, pid, tid ORDER BY start_ns ROWS UNBOUNDED PRECEDING)
),

whole AS (
    SELECT trace_id, pid, tid, whole, count(*) AS pieces
    FROM pieced
    WHERE part = 'before'
    GROUP BY ALL
),

between_ends AS (
    SELECT * FROM whole
    QUALIFY
        whole > min(whole) OVER (PARTITION BY trace_id, pid, tid)
        AND whole < max(whole) OVER (PARTITION BY trace_id, pid, tid)
),

broken AS (
    SELECT trace_id, pid, tid
    FROM between_ends
    GROUP BY trace_id, pid, tid
    HAVING min(pieces) >= 2 AND min(pieces) = max(pieces)
),

judged AS (
    SELECT
        pieced.*,
        broken.trace_id IS NOT NULL AND NOT pieced.is_speculating AND pieced.scope_ns IS NULL AS is_broken,
        CASE
            WHEN pieced.last_step IS NULL THEN TRUE
            WHEN pieced.scope_ns IS NOT NULL THEN coalesce(pieced.scope_ns <> pieced.last_scope_ns, TRUE)
            WHEN pieced.last_scope_ns IS NOT NULL THEN TRUE
            WHEN pieced.is_speculating
                THEN
                    NOT coalesce(
                        pieced.part = 'after'
                        OR (pieced.part IN ('before', 'verify') AND pieced.last_part = 'before'),
                        FALSE
                    )
            WHEN broken.trace_id IS NOT NULL THEN NOT coalesce(pieced.is_piece, FALSE)
            ELSE TRUE
        END AS is_begin
    FROM pieced
    LEFT JOIN broken USING (trace_id, pid, tid)
),

grouped AS (
    SELECT
        *,
        sum(is_begin::INTEGER)
            OVER (PARTITION BY trace_id, pid, tid ORDER BY start_ns ROWS UNBOUNDED PRECEDING) AS pass,
        -- The marker that labels the step: the verifying pass, else the first non-draft pass, else the
        -- first.
        CASE WHEN part = 'verify' THEN 0 WHEN part IS NULL THEN 1 ELSE 2 END AS anchor_rank
    FROM judged
),

pass AS (
    SELECT
        trace_id,
        pid,
        tid,
        pass,
        min(start_ns) AS start_ns,
        max(end_ns) AS end_ns,
        count(*) AS markers,
        bool_or(is_cut) AS is_cut,
        bool_or(is_broken) AS is_broken,
        arg_min(grouped, (anchor_rank, start_ns)) AS anchor
    FROM grouped
    GROUP BY trace_id, pid, tid, pass
)

SELECT
    trace_id,
    row_number() OVER (PARTITION BY trace_id ORDER BY start_ns, pid, tid) - 1 AS step,
    anchor.label,
    pid,
    tid,
    start_ns,
    end_ns,
    markers,
    is_cut,
    anchor.engine,
    CASE
        WHEN markers > 1 AND is_broken THEN least(anchor.confidence, 0.7)
        WHEN markers > 1 AND anchor.scope_ns IS NULL THEN least(anchor.confidence, 0.9)
        ELSE anchor.confidence
    END AS confidence,
    anchor.context_requests,
    anchor.scheduled_context_tokens,
    anchor.generation_requests,
    anchor.generation_tokens,
    anchor.graph_tokens,
    anchor.kv_tokens,
    CASE WHEN anchor.part = 'before' AND anchor.is_speculating THEN 'draft' ELSE anchor.phase END AS phase
FROM pass
