-- What each collective moves: its operation, the algorithm that its name proves, and the bytes that a rank
-- puts in and takes out. NCCL's kernel names prove no algorithm (RING_LL stands for all of them):
-- `convention` is the factor of nccl-tests. Element size: from the call's arguments, else the type in the
-- name of NCCL's reducing kernels, else run_config.dtype. Bytes are NULL where unknown. The second kernel of
-- an all-reduce that consists of two is not a call of its own.
-- grain: trace_id, activity_id (kernels of known operations only)
WITH call AS (
    SELECT
        call.trace_id,
        call.activity_id,
        coalesce(talk.group_size, argument.group_size) AS group_size,
        call.subcategory AS kind,
        CASE
            WHEN call.category = 'allreduce' THEN 'all_reduce'
            WHEN call.category = 'all_to_all' AND coalesce(call.subcategory, '') NOT IN ('notify', 'layout')
                THEN 'all_to_all'
            WHEN call.subcategory IN ('all_gather', 'reduce_scatter', 'broadcast', 'reduce', 'send_recv')
                THEN call.subcategory
            WHEN call.category = 'p2p' THEN 'send_recv'
        END AS op,
        rule.name,
        coalesce(argument.in_msg_nelems, sized.msg_nelems) AS msg_nelems,
        CASE WHEN argument.in_msg_nelems IS NOT NULL THEN 'arguments' ELSE sized.msg_source END AS msg_source,
        argument.out_msg_nelems,
        argument.dtype AS argument_dtype,
        coalesce(
            argument.dtype,
            nullif(
                regexp_extract(
                    rule.name, '^nccl.*_(bf16|f16|f32|f64|i8|u8|i32|u32|i64|u64|f8e4m3|f8e5m2)_', 1
                ),
                ''
            )
        ) AS own_dtype,
        run_config.dtype AS given_dtype
    FROM int_collective AS call
    INNER JOIN int_activity AS rule ON call.trace_id = rule.trace_id AND call.activity_id = rule.activity_id
    LEFT JOIN int_communicator AS talk
        ON call.trace_id = talk.trace_id AND call.activity_id = talk.activity_id
    LEFT JOIN int_message AS sized ON call.trace_id = sized.trace_id AND call.activity_id = sized.activity_id
    LEFT JOIN raw.gpu_activity AS argument
        ON
            call.trace_id = argument.trace_id
            AND call.activity_id = argument.activity_id
            AND argument.in_msg_nelems IS NOT NULL
    LEFT JOIN run_config ON TRUE
    WHERE NOT call.is_half
),

typed AS (
    SELECT
        *,
        CASE
            WHEN
                regexp_matches(
                    lower(coalesce(own_dtype, given_dtype)), '^(bfloat16|bf16|half|float16|fp16|f16|short)$'
                )
                THEN 2
            WHEN
                regexp_matches(
                    lower(coalesce(own_dtype, given_dtype)), '^(float|float32|fp32|f32|int|i32|u32)$'
                )
                THEN 4
            WHEN regexp_matches(lower(coalesce(own_dtype, given_dtype)), '^(double|f64|long|i64|u64)$') THEN 8
            WHEN
                regexp_matches(
                    lower(coalesce(own_dtype, given_dtype)),
                    '^(byte|char|bool|i8|u8|int8|fp8|f8e4m3|f8e5m2|float8.*)$'
                )
                THEN 1
        END AS elem_bytes
    FROM call
    WHERE op IS NOT NULL
),

sized AS (
    SELECT
        *,
        msg_nelems * elem_bytes AS in_bytes,
        elem_bytes * coalesce(
            out_msg_nelems,
            CASE op
                WHEN 'all_gather' THEN msg_nelems * group_size
                WHEN 'reduce_scatter'
                    THEN CASE WHEN msg_nelems % group_size = 0 THEN msg_nelems // group_size END
                ELSE msg_nelems
            END
        ) AS out_bytes
    FROM typed
)

SELECT
    trace_id,
    activity_id,
    op,
    coalesce(kind, 'unknown') AS kind,
    CASE
        WHEN op <> 'all_reduce' OR starts_with(name, 'nccl') THEN 'convention'
        WHEN regexp_matches(name, '(?i)one_?shot|1_?stage') THEN 'one_shot'
        WHEN regexp_matches(name, '(?i)two_?shot|2_?stage') THEN 'two_shot'
        ELSE 'unknown'
    END AS algorithm,
    group_size,
    in_bytes::BIGINT AS in_bytes,
    out_bytes::BIGINT AS out_bytes,
    CASE WHEN in_bytes IS NOT NULL AND out_bytes IS NOT NULL THEN greatest(in_bytes, out_bytes)::BIGINT END
        AS size_bytes,
    CASE
        WHEN in_bytes IS NULL OR out_bytes IS NULL THEN NULL
        ELSE concat(
            msg_source,
            CASE
                WHEN argument_dtype IS NOT NULL THEN ''
                WHEN own_dtype IS NOT NULL THEN ', type in the kernel''s name'
                ELSE ', type of run_config'
            END
        )
    END AS size_source
FROM sized
