-- The communicator of each collective: from its own arguments where it has them, else by its purpose, from
-- the groups of its rank. NULL where several groups are possible and nothing distinguishes them.
-- grain: trace_id, activity_id
WITH argument AS (
    SELECT
        trace_id,
        activity_id,
        group_size,
        process_group,
        in_msg_nelems,
        out_msg_nelems,
        translate(process_group_ranks, '[] ', '') AS members
    FROM raw.gpu_activity
    WHERE nullif(process_group_ranks, '') IS NOT NULL AND group_size IS NOT NULL
),

wanted AS (
    SELECT
        call.trace_id,
        call.device,
        call.activity_id,
        recording.recording,
        recording.rank,
        CASE
            WHEN call.role IN ('dispatch', 'combine') OR call.category = 'all_to_all' THEN 'ep'
            WHEN
                call.category = 'allreduce'
                OR call.role = 'logits'
                OR (call.category = 'collective' AND run_config.sequence_parallel)
                THEN 'tp'
            ELSE 'any'
        END AS purpose
    FROM int_collective AS call
    INNER JOIN int_recording AS recording USING (trace_id, device)
    LEFT JOIN run_config ON TRUE
)

SELECT
    wanted.trace_id,
    wanted.activity_id,
    coalesce(argument.members, own.members, only_one.members) AS members,
    CASE
        WHEN argument.members IS NULL THEN coalesce(own.members, only_one.members)
        ELSE concat(argument.members, ' ', argument.process_group)
    END AS communicator,
    coalesce(argument.group_size, own.group_size, only_one.group_size) AS group_size,
    CASE
        WHEN argument.members IS NULL THEN coalesce(own.group_source, only_one.group_source) ELSE 'arguments'
    END AS group_source,
    argument.in_msg_nelems,
    argument.out_msg_nelems
FROM wanted
LEFT JOIN argument ON wanted.trace_id = argument.trace_id AND wanted.activity_id = argument.activity_id
LEFT JOIN int_rank_group AS own
    ON
        wanted.recording = own.recording
        AND wanted.rank = own.rank
        AND wanted.purpose = own.purpose
        AND own.group_size > 1
LEFT JOIN int_rank_group AS only_one
    ON
        wanted.recording = only_one.recording
        AND wanted.rank = only_one.rank
        AND only_one.purpose = 'any'
        AND only_one.group_size > 1
