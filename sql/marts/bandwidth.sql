-- How fast messages move, by operation and size, over complete steps (and activities outside steps). Time is
-- the floor: the duration on the rank that arrived last (collectives.floor_ns), or, where ranks cannot be
-- compared, the 10th percentile of durations, since most calls of one rank include waiting. algbw = size /
-- time; busbw = algbw x bytes that each GPU sends per byte (wire_ratio, as in nccl-tests,
-- doc/PERFORMANCE.md); size = the larger buffer of a rank. Latency-bound: below latency_bound_factor times
-- the latency floor, which is the shortest floor of messages up to short_message_bytes of the same
-- operation, kernel kind and ranks, else a ring of NCCL's LL protocol over the link of run_config; NULL
-- where neither exists.
-- grain: source, phase, op, kind, algorithm, ranks, in_bytes, out_bytes, size_source
WITH call AS (
    SELECT
        call.run_id,
        call.source,
        call.phase,
        size.op,
        size.kind,
        size.algorithm,
        size.group_size AS ranks,
        size.in_bytes,
        size.out_bytes,
        size.size_bytes,
        size.size_source,
        call.dur_ns,
        call.floor_ns,
        call.wait_ns,
        call.flag
    FROM int_message_size AS size
    INNER JOIN collectives AS call USING (trace_id, activity_id)
    LEFT JOIN steps
        ON call.trace_id = steps.trace_id AND call.device = steps.device AND call.step = steps.step
    WHERE coalesce(steps.is_complete, TRUE)
),

timed AS (
    SELECT
        run_id,
        source,
        phase,
        op,
        kind,
        algorithm,
        ranks,
        in_bytes,
        out_bytes,
        size_bytes,
        size_source,
        count(*) AS calls,
        count(floor_ns) * 2 >= count(*) AS is_compared,
        median(dur_ns) / 1e3 AS us_p50,
        CASE WHEN count(floor_ns) * 2 >= count(*) THEN median(floor_ns) ELSE quantile_cont(dur_ns, 0.1) END
        / 1e3 AS floor_us,
        share_of(greatest(sum(wait_ns), 0), sum(dur_ns) FILTER (WHERE wait_ns IS NOT NULL)) AS wait_share,
        bool_or(coalesce(flag = 'fused', FALSE)) AS is_fused,
        CASE
            WHEN algorithm = 'unknown' THEN NULL
            WHEN op = 'all_reduce' AND algorithm = 'one_shot' THEN ranks - 1
            WHEN op = 'all_reduce' THEN 2 * (ranks - 1) / ranks
            WHEN op IN ('all_gather', 'reduce_scatter', 'all_to_all') THEN (ranks - 1) / ranks
            WHEN ranks IS NOT NULL THEN 1
        END AS wire_ratio
    FROM call
    GROUP BY ALL
),

link AS (
    SELECT link_info.* FROM link_info
    INNER JOIN run_config USING (link)
),

with_floor AS (
    SELECT
        timed.*,
        min(floor_us) FILTER (WHERE size_bytes <= short_message_bytes())
            OVER (PARTITION BY source, op, kind, algorithm, ranks) AS short_us,
        link.link,
        link.gbps AS link_gbps,
        link.base_us + link.hop_us * CASE
            WHEN op = 'all_reduce' THEN 2 * (ranks - 1)
            WHEN op IN ('all_to_all', 'send_recv') THEN 1
            ELSE ranks - 1
        END AS model_us
    FROM timed
    LEFT JOIN link ON TRUE
)

SELECT
    run_id,
    source,
    phase,
    op,
    kind,
    algorithm,
    ranks,
    in_bytes,
    out_bytes,
    size_bytes,
    size_source,
    calls,
    is_fused,
    round(us_p50, 3) AS us_p50,
    round(floor_us, 3) AS floor_us,
    CASE WHEN is_compared THEN 'last rank' ELSE 'p10 of durations' END AS floor_source,
    wait_share,
    wire_ratio,
    round(size_bytes * wire_ratio)::BIGINT AS wire_bytes,
    round(size_bytes / nullif(floor_us, 0) / 1e3, 6) AS algbw_gbps,
    round(size_bytes / nullif(floor_us, 0) / 1e3 * wire_ratio, 6) AS busbw_gbps,
    round(coalesce(short_us, model_us), 3) AS latency_floor_us,
    CASE
        WHEN short_us IS NOT NULL THEN 'messages up to 32 KiB'
        WHEN model_us IS NOT NULL THEN 'NCCL''s model of the link'
    END AS latency_floor_source,
    CASE
        WHEN size_bytes IS NOT NULL THEN floor_us < latency_bound_factor() * coalesce(short_us, model_us)
    END AS is_latency_bound,
    link,
    link_gbps,
    round(size_bytes / nullif(floor_us, 0) / 1e3 * wire_ratio / link_gbps, 6) AS link_share
FROM with_floor
