-- How many steps each method finds in a trace, and which one was used: where they disagree, one of them is
-- wrong. Steps without GPU work are counted separately: only annotations show them.
-- grain: trace_id, method
WITH annotated AS (
    SELECT
        marker.trace_id,
        CASE WHEN trace.source = 'nsys' THEN 'nvtx' ELSE 'annotation' END AS method,
        count(*) AS steps
    FROM int_marked_pass AS marker
    INNER JOIN stg_trace AS trace USING (trace_id)
    GROUP BY ALL
),

with_work AS (
    SELECT trace_id, method, count(DISTINCT step) AS steps
    FROM steps
    WHERE activities > 0
    GROUP BY trace_id, method
),

replayed AS (SELECT trace_id, 'graph' AS method, count(*) AS steps FROM int_replay_pass GROUP BY trace_id),

by_device AS (SELECT trace_id, device, count(*) AS steps FROM int_pattern_pass GROUP BY trace_id, device),

repeated AS (SELECT trace_id, 'pattern' AS method, max(steps) AS steps FROM by_device GROUP BY trace_id),

found AS (
    SELECT * FROM annotated
    UNION ALL
    SELECT * FROM replayed
    UNION ALL
    SELECT * FROM repeated
),

used AS (SELECT DISTINCT trace_id, method FROM int_step_begin),

-- What a method is compared with: replays with the steps that replay graphs, kernel order with the steps
-- that have work.
compared AS (
    SELECT
        trace_id,
        count(DISTINCT step) FILTER (WHERE graph_launches > 0) AS steps_with_graph,
        count(DISTINCT step) FILTER (WHERE activities > 0) AS steps_with_work
    FROM steps
    GROUP BY trace_id
)

SELECT
    trace.run_id,
    trace.source,
    found.trace_id,
    trace.rank,
    found.method,
    found.steps,
    coalesce(with_work.steps, CASE WHEN used.method IS NULL THEN found.steps ELSE 0 END) AS steps_with_work,
    used.method IS NOT NULL AS is_used,
    CASE WHEN found.method = 'graph' THEN compared.steps_with_graph ELSE compared.steps_with_work END
        AS compared_with,
    CASE
        WHEN used.method IS NOT NULL THEN TRUE
        WHEN found.method = 'graph' THEN found.steps = compared.steps_with_graph
        -- Kernel order may miss the first or the last step.
        ELSE abs(found.steps - compared.steps_with_work) <= 1
    END AS is_agreed
FROM found
INNER JOIN stg_trace AS trace USING (trace_id)
LEFT JOIN used ON found.trace_id = used.trace_id AND found.method = used.method
LEFT JOIN compared ON found.trace_id = compared.trace_id
LEFT JOIN with_work ON found.trace_id = with_work.trace_id AND found.method = with_work.method
