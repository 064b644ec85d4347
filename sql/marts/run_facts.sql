-- What a run is: its traces, ranks and steps, and which code and rules built it. The view `runs` adds the
-- verdict.
-- grain: source
WITH rank_seen AS (
    SELECT
        source,
        count(*) AS traces,
        count(DISTINCT rank) AS ranks,
        max(world_size) AS ranks_expected,
        string_agg(DISTINCT gpu_name, ', ' ORDER BY gpu_name) AS gpu_name
    FROM stg_trace
    GROUP BY source
),

-- Steps of a rank: ranks run the same forward pass together, so the longest count is the run's.
phase_count AS (
    SELECT
        source, trace_id, count(DISTINCT step) FILTER (WHERE phase = 'decode') AS decode_steps,
        count(DISTINCT step) FILTER (WHERE phase = 'prefill') AS prefill_steps
    FROM steps
    GROUP BY source, trace_id
),

counted AS (
    SELECT source, max(decode_steps) AS decode_steps, max(prefill_steps) AS prefill_steps
    FROM phase_count
    GROUP BY source
),

engine AS (
    SELECT trace.source, string_agg(DISTINCT marker.engine, ', ' ORDER BY marker.engine) AS engine
    FROM int_marked_pass AS marker
    INNER JOIN stg_trace AS trace USING (trace_id)
    GROUP BY trace.source
),

-- A run may hold latency tables alone.
run AS (
    SELECT DISTINCT run_id, source FROM stg_trace
    UNION ALL
    SELECT DISTINCT run_id, 'microbench' AS source FROM raw.microbench
    WHERE NOT EXISTS (SELECT 1 FROM stg_trace)
)

SELECT
    run.run_id,
    run.source,
    coalesce(rank_seen.traces, 0) AS traces,
    coalesce(rank_seen.ranks, 0) AS ranks,
    rank_seen.ranks_expected,
    coalesce(counted.decode_steps, 0) AS decode_steps,
    coalesce(counted.prefill_steps, 0) AS prefill_steps,
    rank_seen.gpu_name,
    engine.engine,
    build_info.build_id,
    build_info.rules_sha,
    build_info.models_sha,
    build_info.inputs_sha,
    build_info.contract_version
FROM run
LEFT JOIN rank_seen USING (source)
LEFT JOIN counted USING (source)
LEFT JOIN engine USING (source)
CROSS JOIN build_info
