-- The offset of each rank's clock from that of the lowest rank it communicates with: the median over common
-- collectives of the difference of their ends, which all ranks of a collective share. The residual is the
-- median deviation from that offset. Times in ns.
-- grain: trace_id, device, members
WITH ended AS (
    SELECT
        trace_id,
        device,
        source,
        rank,
        members,
        end_ns - first_value(end_ns) OVER of_call AS late_ns,
        first_value(rank) OVER of_call AS reference_rank
    FROM int_matched_call
    WHERE refusal IS NULL
    WINDOW of_call AS (PARTITION BY recording, match_id, communicator, call ORDER BY rank)
),

clock AS (
    SELECT
        trace_id,
        device,
        source,
        rank,
        members,
        reference_rank,
        count(*) AS calls,
        round(median(late_ns))::BIGINT AS offset_ns
    FROM ended
    GROUP BY ALL
),

residual AS (
    SELECT
        ended.trace_id,
        ended.device,
        ended.members,
        round(median(abs(ended.late_ns - clock.offset_ns)))::BIGINT AS residual_ns,
        round(quantile_cont(abs(ended.late_ns - clock.offset_ns), 0.99))::BIGINT AS residual_p99_ns
    FROM ended
    INNER JOIN clock USING (trace_id, device, members)
    GROUP BY ended.trace_id, ended.device, ended.members
)

SELECT
    trace.run_id,
    clock.source,
    clock.trace_id,
    clock.rank,
    clock.device,
    clock.members,
    clock.reference_rank,
    clock.calls,
    clock.offset_ns,
    residual.residual_ns,
    residual.residual_p99_ns
FROM clock
INNER JOIN residual USING (trace_id, device, members)
INNER JOIN stg_trace AS trace USING (trace_id)
