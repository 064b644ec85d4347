-- Steps for which the profiler lost records. A step is compared with its peers (steps of one source with the
-- same marker text, phase and method; all steps found by kernel order, since a shortened step has no phase
-- there): its kernels of the model are fewer, and for no name more, than in the multiset that more than half
-- of at least lost_record_peers peers share. Peers are steps of all ranks; only of its own device where
-- ranks do different work (they send to each other: pipeline parallelism) or where all ranks together have
-- no usual multiset. Profilers drop records anywhere in a capture without notice. Input copies, sampling and
-- other small kernels differ between intact steps, so they are not compared.
-- grain: trace_id, device, step
WITH kernel AS (
    SELECT
        rule.trace_id,
        rule.device,
        placed.step,
        rule.name,
        count(*) AS calls,
        bool_or(kernel_rule.category = 'p2p') AS is_p2p
    FROM int_activity AS rule
    INNER JOIN int_activity_step AS placed USING (trace_id, activity_id)
    INNER JOIN kernel_rule USING (rule_id)
    WHERE
        placed.step IS NOT NULL AND rule.kind = 'kernel'
        AND kernel_rule.category IN (
            'allreduce',
            'all_to_all',
            'collective',
            'p2p',
            'attention',
            'moe_gemm',
            'gemm',
            'routing',
            'norm',
            'activation',
            'rope',
            'kv_cache'
        )
    GROUP BY ALL
),

begun AS (
    SELECT
        begin_at.trace_id,
        begin_at.step,
        begin_at.device,
        concat_ws(
            ' ',
            trace.source,
            begin_at.method,
            CASE WHEN begin_at.method <> 'pattern' THEN begin_at.phase END,
            begin_at.label
        ) AS peers
    FROM int_step_begin AS begin_at
    INNER JOIN stg_trace AS trace USING (trace_id)
),

-- A step that ends before the first kernel of the model has an empty multiset, which is compared too.
seen AS (
    SELECT DISTINCT rule.trace_id, rule.device, placed.step
    FROM int_activity AS rule
    INNER JOIN int_activity_step AS placed USING (trace_id, activity_id)
    SEMI JOIN kernel ON rule.trace_id = kernel.trace_id AND rule.device = kernel.device
    WHERE placed.step IS NOT NULL
),

one_step AS (
    SELECT
        seen.trace_id,
        seen.device,
        seen.step,
        any_value(begun.peers) AS peers,
        coalesce(bool_or(kernel.is_p2p), FALSE) AS is_p2p,
        hash(list((kernel.name, kernel.calls) ORDER BY kernel.name)) AS multiset,
        coalesce(sum(kernel.calls), 0) AS kernels
    FROM seen
    INNER JOIN begun
        ON
            seen.trace_id = begun.trace_id
            AND seen.step = begun.step
            AND coalesce(seen.device = begun.device, TRUE)
    LEFT JOIN kernel
        ON seen.trace_id = kernel.trace_id AND seen.device = kernel.device AND seen.step = kernel.step
    GROUP BY seen.trace_id, seen.device, seen.step
),

step_of AS (
    SELECT *, bool_or(is_p2p) OVER (PARTITION BY peers) AS is_pipelined FROM one_step
),

variant AS (
    SELECT peers, multiset, count(*) AS times FROM step_of WHERE NOT is_pipelined GROUP BY peers, multiset
),

of_all_ranks AS (
    SELECT peers
    FROM variant
    GROUP BY peers
    HAVING sum(times) >= lost_record_peers() AND max(times) * 2 > sum(times)
),

step AS (
    SELECT
        step_of.* EXCLUDE (peers),
        CASE
            WHEN of_all_ranks.peers IS NULL
                THEN concat_ws(' ', step_of.trace_id, step_of.device, step_of.peers)
            ELSE step_of.peers
        END AS peers
    FROM step_of
    LEFT JOIN of_all_ranks USING (peers)
),

tally AS (
    SELECT
        peers,
        multiset,
        any_value(kernels) AS kernels,
        count(*) AS times,
        min((trace_id, device, step)) AS example
    FROM step
    GROUP BY peers, multiset
),

usual AS (
    SELECT
        peers,
        arg_max(multiset, (times, multiset)) AS multiset,
        arg_max(kernels, (times, multiset)) AS kernels,
        arg_max(example, (times, multiset)) AS example
    FROM tally
    GROUP BY peers
    HAVING sum(times) >= lost_record_peers() AND max(times) * 2 > sum(times)
),

suspect AS (
    SELECT step.trace_id, step.device, step.step, step.kernels, usual.kernels AS usual_kernels, usual.example
    FROM step
    INNER JOIN usual USING (peers)
    WHERE step.multiset <> usual.multiset AND step.kernels < usual.kernels
),

example AS (
    SELECT usual.example, kernel.name, kernel.calls
    FROM kernel
    INNER JOIN usual ON (kernel.trace_id, kernel.device, kernel.step) = usual.example
),

more AS (
    SELECT DISTINCT suspect.trace_id, suspect.device, suspect.step
    FROM suspect
    INNER JOIN kernel USING (trace_id, device, step)
    LEFT JOIN example ON suspect.example = example.example AND kernel.name = example.name
    WHERE kernel.calls > coalesce(example.calls, 0)
)

SELECT
    suspect.trace_id,
    suspect.device,
    suspect.step,
    (suspect.usual_kernels - suspect.kernels)::BIGINT AS lost_kernels
FROM suspect
ANTI JOIN more USING (trace_id, device, step)
