-- The devices that took part in one run at one time, so that their collectives can be matched: all devices
-- of a source in which each rank occurs once, else those of one file (an nsys report, a merged trace) if
-- each rank occurs once in every file. Otherwise `recording` is NULL: replicas that are all labeled rank 0,
-- or unknown ranks, are indistinguishable.
-- grain: trace_id, device (devices with communication only)
WITH member AS (
    SELECT DISTINCT trace_id, device FROM int_collective
),

counted AS (
    SELECT
        member.trace_id,
        member.device,
        trace.source,
        trace.rank,
        trace.world_size,
        trace.tp_rank,
        trace.dp_rank,
        trace.pp_rank,
        trace.sha256,
        count(*) OVER (PARTITION BY trace.source, trace.rank) AS same_in_source,
        count(*) OVER (PARTITION BY trace.source, trace.sha256, trace.rank) AS same_in_file
    FROM member
    INNER JOIN raw.trace AS trace USING (trace_id)
),

labeled AS (
    SELECT
        *,
        CASE
            WHEN count(*) OVER in_source <> count(rank) OVER in_source THEN NULL
            WHEN max(same_in_source) OVER in_source = 1 THEN source
            WHEN max(same_in_file) OVER in_source = 1 THEN source || ' ' || sha256
        END AS recording,
        count(*) OVER in_source AS devices
    FROM counted
    WINDOW in_source AS (PARTITION BY source)
)

SELECT
    trace_id,
    device,
    source,
    rank,
    tp_rank,
    dp_rank,
    pp_rank,
    recording,
    devices,
    count(*) OVER in_recording AS ranks,
    greatest(count(*) OVER in_recording, coalesce(max(world_size) OVER in_recording, 0)) AS world_size
FROM labeled
WINDOW in_recording AS (PARTITION BY source, recording)
