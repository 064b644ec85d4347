-- Each collective beside the same one on the other ranks. `call` is its number within its communicator in
-- the matched step, counted over the operations in which every rank waits for every other. `refusal` is why
-- a call is not compared: no_step; kind (broadcast, reduce, gather, send and receive, or an operation that
-- the name does not show: a rank may leave before another arrives); one_rank; ranks_unknown (labels are
-- missing or repeat); groups_unknown; no_match (the other ranks lack the step); ranks_missing (from its
-- group, so the last rank to arrive may be one of them); counts_differ and order_differs, with the first
-- such call in `refused_call`; uneven (an all-to-all whose ranks are not shown to send equal amounts).
-- grain: trace_id, activity_id
WITH call AS (
    SELECT
        call.*,
        recording.source,
        recording.recording,
        recording.rank,
        recording.devices,
        recording.world_size,
        recording.ranks,
        match.match_id,
        talk.members,
        talk.communicator,
        talk.group_size,
        talk.group_source,
        talk.in_msg_nelems,
        talk.out_msg_nelems,
        concat(call.category, ' ', call.subcategory) AS kind,
        concat(call.layer, ' ', call.part) AS where_text,
        NOT call.is_half AND (
            call.category = 'allreduce'
            OR (
                call.category = 'collective'
                AND coalesce(call.subcategory, '') IN ('all_gather', 'reduce_scatter', 'barrier')
            )
            OR (call.category = 'all_to_all' AND coalesce(call.subcategory, '') NOT IN ('notify', 'layout'))
        ) AS is_common
    FROM int_collective AS call
    INNER JOIN int_recording AS recording USING (trace_id, device)
    LEFT JOIN int_step_match AS match
        ON call.trace_id = match.trace_id AND call.device = match.device AND call.step = match.step
    LEFT JOIN int_communicator AS talk
        ON call.trace_id = talk.trace_id AND call.activity_id = talk.activity_id
),

numbered AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY recording, match_id, communicator, rank ORDER BY start_ns, activity_id
        ) - 1 AS number
    FROM call
    WHERE is_common AND recording IS NOT NULL AND match_id IS NOT NULL AND communicator IS NOT NULL
),

beside AS (
    SELECT
        recording,
        match_id,
        communicator,
        number,
        count(*) AS ranks_here,
        count(DISTINCT kind) AS kinds,
        count(DISTINCT where_text) AS places,
        count(*) = count(in_msg_nelems)
        AND count(DISTINCT in_msg_nelems) = 1
        AND bool_and(coalesce(in_msg_nelems = out_msg_nelems, FALSE)) AS is_even
    FROM numbered
    GROUP BY recording, match_id, communicator, number
),

talk AS (
    SELECT
        recording,
        match_id,
        communicator,
        max(ranks_here) AS ranks_there,
        min(ranks_here) < max(ranks_here) AS is_count_different,
        min(number) FILTER (WHERE kinds > 1) AS first_other_kind,
        min(number) FILTER (WHERE kinds > 1 OR places > 1) AS first_other_place,
        max(number) + 1 AS calls
    FROM beside
    GROUP BY recording, match_id, communicator
),

-- Where counts differ: the first call whose kind or position differs, else the first that a rank lacks.
missing AS (
    SELECT beside.recording, beside.match_id, beside.communicator, min(beside.number) AS first_missing
    FROM beside
    INNER JOIN talk USING (recording, match_id, communicator)
    WHERE beside.ranks_here < talk.ranks_there
    GROUP BY beside.recording, beside.match_id, beside.communicator
),

judged AS (
    SELECT
        numbered.trace_id,
        numbered.activity_id,
        numbered.number,
        beside.is_even,
        talk.ranks_there,
        talk.is_count_different,
        talk.first_other_kind IS NOT NULL AS is_order_different,
        CASE
            WHEN talk.is_count_different THEN least(talk.first_other_place, missing.first_missing)
            ELSE talk.first_other_kind
        END AS refused_call
    FROM numbered
    INNER JOIN beside USING (recording, match_id, communicator, number)
    INNER JOIN talk USING (recording, match_id, communicator)
    LEFT JOIN missing USING (recording, match_id, communicator)
)

SELECT
    call.trace_id,
    call.device,
    call.activity_id,
    call.source,
    call.rank,
    call.recording,
    call.step,
    call.match_id,
    call.members,
    call.communicator,
    call.group_size,
    call.group_source,
    judged.number AS call,
    call.start_ns,
    call.end_ns,
    call.dur_ns,
    call.place,
    CASE
        WHEN call.step IS NULL THEN 'no_step'
        WHEN NOT call.is_common THEN 'kind'
        WHEN call.devices = 1 AND call.world_size = 1 THEN 'one_rank'
        WHEN call.recording IS NULL THEN 'ranks_unknown'
        WHEN call.ranks = 1 THEN 'one_rank'
        WHEN call.communicator IS NULL THEN 'groups_unknown'
        WHEN call.match_id IS NULL THEN 'no_match'
        WHEN call.ranks < call.group_size THEN 'ranks_missing'
        WHEN judged.ranks_there < call.group_size THEN 'no_match'
        WHEN judged.is_count_different THEN 'counts_differ'
        WHEN judged.is_order_different THEN 'order_differs'
        WHEN call.category = 'all_to_all' AND NOT judged.is_even THEN 'uneven'
    END AS refusal,
    judged.refused_call
FROM call
LEFT JOIN judged ON call.trace_id = judged.trace_id AND call.activity_id = judged.activity_id
