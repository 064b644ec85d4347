-- One collective on one rank, beside the same one on the other ranks. The floor is its duration on the rank
-- that arrived last (starts aligned by rank_clock), which waited for no other rank; wait = duration - floor.
-- Ties go to the rank with the shorter duration. Times in ns.
-- grain: trace_id, activity_id
WITH aligned AS (
    SELECT
        call.trace_id,
        call.activity_id,
        call.recording,
        call.match_id,
        call.communicator,
        call.call,
        call.rank,
        call.dur_ns,
        call.start_ns - clock.offset_ns AS aligned_start_ns,
        max(clock.residual_ns)
            OVER (PARTITION BY call.recording, call.match_id, call.communicator, call.call) AS residual_ns
    FROM int_matched_call AS call
    INNER JOIN rank_clock AS clock USING (trace_id, device, members)
    WHERE call.refusal IS NULL
),

compared AS (
    SELECT
        *,
        first_value(dur_ns) OVER by_arrival AS floor_ns,
        first_value(rank) OVER by_arrival AS last_rank,
        min(dur_ns) OVER (PARTITION BY recording, match_id, communicator, call) AS min_over_ranks_ns
    FROM aligned
    WINDOW by_arrival AS (
        PARTITION BY recording, match_id, communicator, call
        ORDER BY aligned_start_ns DESC, dur_ns ASC, rank ASC
    )
)

SELECT
    trace.run_id,
    matched.source,
    place.trace_id,
    trace.rank,
    place.device,
    place.activity_id,
    place.step,
    matched.match_id,
    coalesce(steps.phase, 'unknown') AS phase,
    place.place,
    CASE
        WHEN place.part = 'before_layers' THEN 'before the first layer'
        WHEN place.part = 'after_layers' THEN 'after the last layer'
        WHEN place.part = 'draft' THEN 'draft pass'
        WHEN place.part = 'unknown' THEN 'unknown'
        ELSE concat(
            'layer ',
            place.layer,
            CASE place.part
                WHEN 'before_attention' THEN ' before attention'
                WHEN 'after_attention' THEN ' after attention'
                WHEN 'after_moe' THEN ' after MoE' ELSE ' after MLP'
            END
        )
    END AS position,
    place.part,
    place.layer,
    place.category,
    place.subcategory,
    place.role,
    place.is_half,
    matched.communicator,
    matched.group_size,
    matched.group_source,
    matched.call,
    place.start_ns,
    place.dur_ns,
    compared.aligned_start_ns,
    compared.floor_ns,
    compared.min_over_ranks_ns,
    place.dur_ns - compared.floor_ns AS wait_ns,
    compared.last_rank,
    CASE WHEN matched.refusal IS NULL THEN place.place = 0 END AS is_first,
    place.dur_ns - compared.floor_ns < jitter_ns() + compared.residual_ns AS is_jitter,
    CASE WHEN place.is_fused THEN 'fused' WHEN place.is_early THEN 'programmatic_launch' END AS flag,
    matched.refusal,
    CASE
        WHEN matched.refused_call IS NOT NULL AND matched.refusal IN ('counts_differ', 'order_differs')
            THEN matched.refused_call
    END AS refused_call
FROM int_collective AS place
INNER JOIN int_matched_call AS matched USING (trace_id, activity_id)
INNER JOIN stg_trace AS trace USING (trace_id)
LEFT JOIN compared USING (trace_id, activity_id)
LEFT JOIN steps ON place.trace_id = steps.trace_id AND place.device = steps.device AND place.step = steps.step
