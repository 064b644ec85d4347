-- Waiting in the collectives of a step, and its cause, in ns. Exactly: dur = floor + wait + first_wait +
-- jitter, over the collectives that are compared. The straggler is the rank for which the others waited
-- longest, in the collectives that this rank took part in; late_category is the category (or idle) with the
-- largest excess over the mean of the other ranks, before the collectives where the straggler arrived last.
-- grain: trace_id, device, step
WITH call AS (
    SELECT
        collectives.*,
        collectives.refusal IS NULL AND NOT collectives.is_first AND NOT collectives.is_jitter AS is_wait,
        recording.recording
    FROM collectives
    INNER JOIN int_recording AS recording USING (trace_id, device)
    WHERE collectives.step IS NOT NULL
),

own AS (
    SELECT
        run_id,
        source,
        trace_id,
        rank,
        device,
        step,
        recording,
        match_id,
        count(*) AS calls,
        count(*) FILTER (WHERE refusal IS NULL) AS compared,
        count(*) FILTER (WHERE refusal IS NULL AND flag IS NOT NULL) AS flagged,
        coalesce(sum(dur_ns) FILTER (WHERE refusal IS NOT NULL), 0)::BIGINT AS refused_ns,
        coalesce(sum(dur_ns) FILTER (WHERE refusal IS NULL), 0)::BIGINT AS dur_ns,
        coalesce(sum(floor_ns), 0)::BIGINT AS floor_ns,
        coalesce(sum(wait_ns) FILTER (WHERE is_wait), 0)::BIGINT AS wait_ns,
        coalesce(sum(wait_ns) FILTER (WHERE is_first), 0)::BIGINT AS first_wait_ns,
        any_value(last_rank) FILTER (WHERE is_first) AS first_last_rank,
        coalesce(sum(wait_ns) FILTER (WHERE is_jitter AND NOT is_first), 0)::BIGINT AS jitter_ns
    FROM call
    GROUP BY run_id, source, trace_id, rank, device, step, recording, match_id
),

-- Time that the others waited for the last rank, in each collective.
call_cause AS (
    SELECT recording, match_id, communicator, call, last_rank, sum(wait_ns)::BIGINT AS caused_ns
    FROM call
    WHERE is_wait
    GROUP BY recording, match_id, communicator, call, last_rank
),

met AS (
    SELECT call.trace_id, call.device, call.step, call_cause.last_rank, sum(call_cause.caused_ns) AS caused_ns
    FROM call
    INNER JOIN call_cause USING (recording, match_id, communicator, call)
    GROUP BY call.trace_id, call.device, call.step, call_cause.last_rank
),

straggler AS (
    SELECT trace_id, device, step, last_rank AS straggler_rank
    FROM met
    QUALIFY row_number() OVER (PARTITION BY trace_id, device, step ORDER BY caused_ns DESC, last_rank ASC) = 1
),

caused AS (
    SELECT recording, match_id, last_rank, sum(caused_ns)::BIGINT AS caused_ns
    FROM call_cause
    GROUP BY recording, match_id, last_rank
),

surplus AS (
    SELECT
        call.recording,
        call.match_id,
        call_cause.last_rank,
        work.category,
        sum(
            CASE
                WHEN call.rank = call_cause.last_rank THEN work.work_ns
                ELSE -work.work_ns / (call.group_size - 1)
            END
        ) AS more_ns
    FROM call
    INNER JOIN call_cause USING (recording, match_id, communicator, call)
    INNER JOIN int_lead_work AS work
        ON
            call.trace_id = work.trace_id
            AND call.device = work.device
            AND call.step = work.step
            AND call.place = work.place
    GROUP BY call.recording, call.match_id, call_cause.last_rank, work.category
),

late AS (
    SELECT recording, match_id, last_rank, category AS late_category, round(more_ns)::BIGINT AS late_ns
    FROM surplus
    WHERE more_ns > 0
    QUALIFY
        row_number() OVER (PARTITION BY recording, match_id, last_rank ORDER BY more_ns DESC, category ASC)
        = 1
)

SELECT
    own.run_id,
    own.source,
    own.trace_id,
    own.rank,
    own.device,
    own.step,
    own.match_id,
    steps.phase,
    coalesce(bool_and(steps.is_complete) OVER (PARTITION BY own.recording, own.match_id), FALSE)
        AS is_complete,
    own.calls,
    own.compared,
    own.flagged,
    own.dur_ns,
    own.floor_ns,
    own.wait_ns,
    own.first_wait_ns,
    own.first_last_rank,
    own.jitter_ns,
    own.refused_ns,
    straggler.straggler_rank,
    caused.caused_ns,
    late.late_category,
    late.late_ns
FROM own
INNER JOIN steps USING (trace_id, device, step)
LEFT JOIN straggler USING (trace_id, device, step)
LEFT JOIN caused
    ON
        own.recording = caused.recording
        AND own.match_id = caused.match_id
        AND straggler.straggler_rank = caused.last_rank
LEFT JOIN late
    ON
        own.recording = late.recording
        AND own.match_id = late.match_id
        AND straggler.straggler_rank = late.last_rank
