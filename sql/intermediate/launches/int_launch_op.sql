-- The CPU operators that were open on the launching thread at the time of a call: the innermost, and all of
-- them, outermost first. Operators nest per thread, so the operator at each depth up to the thread's depth
-- is the last one opened at that depth. Of two with the same start the longer is the outer one; of twins the
-- one with the lower id. (External ids are not used otherwise: torch 1.13 to 2.5 wrote other numbers there;
-- kineto 63675439, 955af497.)
-- grain: trace_id, correlation
WITH operator AS (
    SELECT trace_id, pid, tid, name, start_ns, start_ns + dur_ns AS end_ns, dur_ns, external_id
    FROM raw.cpu_op
    WHERE dur_ns > 0
),

mark AS (
    SELECT
        trace_id,
        pid,
        tid,
        start_ns AS at_ns,
        1 AS sort_order,
        1 AS change,
        -dur_ns AS tie,
        external_id AS twin,
        name,
        end_ns,
        NULL AS correlation
    FROM operator
    UNION ALL
    SELECT
        trace_id,
        pid,
        tid,
        end_ns AS at_ns,
        0 AS sort_order,
        -1 AS change,
        0 AS tie,
        NULL AS twin,
        NULL AS name,
        NULL AS end_ns,
        NULL AS correlation
    FROM operator
    UNION ALL
    SELECT
        trace_id,
        pid,
        tid,
        start_ns AS at_ns,
        2 AS sort_order,
        0 AS change,
        correlation AS tie,
        NULL AS twin,
        NULL AS name,
        NULL AS end_ns,
        correlation
    FROM stg_launch
),

deep AS (
    SELECT
        *,
        sum(change) OVER (
            PARTITION BY trace_id, pid, tid
            ORDER BY at_ns, sort_order, tie, twin NULLS FIRST, name NULLS FIRST
            ROWS UNBOUNDED PRECEDING
        ) AS depth
    FROM mark
),

opened AS (SELECT trace_id, pid, tid, depth, at_ns, end_ns, name FROM deep WHERE sort_order = 1),

call AS (SELECT trace_id, pid, tid, depth, at_ns, correlation FROM deep WHERE sort_order = 2),

level AS (
    SELECT trace_id, pid, tid, at_ns, correlation, depth, unnest(range(1, depth::BIGINT + 1)) AS level
    FROM call
),

-- Operators that cross instead of nesting could lead to an operator that has ended; it is left out.
open_operator AS (
    SELECT level.trace_id, level.correlation, level.depth, level.level, opened.name
    FROM level
    ASOF JOIN opened
        ON
            level.trace_id = opened.trace_id AND level.pid = opened.pid AND level.tid = opened.tid
            AND level.level = opened.depth AND level.at_ns >= opened.at_ns
    WHERE level.at_ns < opened.end_ns
)

SELECT
    trace_id,
    correlation,
    max(name) FILTER (WHERE level = depth) AS op,
    string_agg(name, chr(10) ORDER BY level) AS ops
FROM open_operator
GROUP BY trace_id, correlation
