-- Time per step of each rank's collectives in complete steps, and what of it is waiting. Reads straggler_call
-- (calls.sql). Units: ms, mean over steps; ms = wait + floor + first_wait + jitter.
-- grain: source, phase, operation, rank
-- parameters: run_id
WITH complete AS (
    SELECT trace_id, device, step
    FROM step_waiting
    WHERE run_id = $run_id AND is_complete
),

call AS (
    SELECT straggler_call.*
    FROM straggler_call
    INNER JOIN complete USING (trace_id, device, step)
    WHERE straggler_call.refusal IS NULL
),

step AS (
    SELECT
        source,
        phase,
        operation,
        rank,
        trace_id,
        device,
        step,
        count(*) AS calls,
        sum(dur_ns) AS ns,
        sum(floor_ns) AS floor_ns,
        coalesce(sum(wait_ns) FILTER (WHERE NOT is_first AND NOT is_jitter), 0) AS wait_ns,
        coalesce(sum(wait_ns) FILTER (WHERE is_first), 0) AS first_wait_ns,
        coalesce(sum(wait_ns) FILTER (WHERE is_jitter AND NOT is_first), 0) AS jitter_ns,
        sum(min_over_ranks_ns) AS min_ns,
        count(flag) AS flagged
    FROM call
    GROUP BY ALL
)

SELECT
    source,
    phase,
    operation,
    rank,
    count(*) AS steps,
    sum(calls)::BIGINT AS calls,
    avg(ns) / 1e6 AS ms,
    avg(wait_ns) / 1e6 AS wait_ms,
    avg(floor_ns) / 1e6 AS floor_ms,
    avg(first_wait_ns) / 1e6 AS first_wait_ms,
    avg(jitter_ns) / 1e6 AS jitter_ms,
    avg(min_ns) / 1e6 AS min_ms,
    (sum(ns) - sum(floor_ns)) / nullif(sum(ns), 0) AS wait_share,
    sum(flagged)::BIGINT AS flagged
FROM step
GROUP BY ALL
ORDER BY ALL
