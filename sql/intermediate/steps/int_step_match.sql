-- The same forward pass on different ranks of one source. Ranks whose steps issue the same numbers of
-- collectives in the same order are matched by that order; others (data-parallel ranks run prefill, decode
-- and dummy batches side by side) by time: the step of the reference rank (most steps, then lowest rank)
-- that runs at the middle of this one. NULL where no step matches; of several steps of a rank that match one
-- step, the one with the longest overlap is taken, so that each rank has it once.
-- grain: trace_id, device, step
WITH step AS (
    SELECT trace.source, time_line.*
    FROM int_step_window AS time_line
    INNER JOIN stg_trace AS trace USING (trace_id)
),

collective AS (
    SELECT placed.trace_id, rule.device, placed.step, count(*) AS collectives
    FROM int_activity_step AS placed
    INNER JOIN int_activity AS rule USING (trace_id, activity_id)
    INNER JOIN kernel_rule USING (rule_id)
    WHERE is_communication(kernel_rule.category) AND placed.step IS NOT NULL
    GROUP BY ALL
),

counted AS (
    SELECT
        step.source,
        step.trace_id,
        step.device,
        step.step,
        step.start_ns,
        step.end_ns,
        step.next_ns,
        coalesce(collective.collectives, 0) AS collectives,
        row_number() OVER (PARTITION BY step.trace_id, step.device ORDER BY step.step) - 1 AS place
    FROM step
    LEFT JOIN collective USING (trace_id, device, step)
),

lane AS (
    SELECT
        source,
        trace_id,
        device,
        count(*) AS steps,
        string_agg(collectives, ',' ORDER BY place) AS sequence
    FROM counted
    GROUP BY source, trace_id, device
),

alike AS (SELECT source, count(DISTINCT sequence) = 1 AS is_alike FROM lane GROUP BY source),

reference AS (
    SELECT lane.source, lane.trace_id, lane.device
    FROM lane
    INNER JOIN stg_trace AS trace USING (trace_id)
    QUALIFY row_number() OVER (
        PARTITION BY lane.source
        ORDER BY lane.steps DESC, trace.rank ASC NULLS LAST, lane.trace_id ASC, lane.device ASC
    ) = 1
),

reference_step AS (
    SELECT
        counted.source, counted.place, counted.start_ns, coalesce(counted.next_ns, counted.end_ns) AS until_ns
    FROM counted
    INNER JOIN reference USING (source, trace_id, device)
),

by_time AS (
    SELECT counted.trace_id, counted.device, counted.step, reference_step.place
    FROM counted
    ASOF JOIN reference_step
        ON
            counted.source = reference_step.source
            AND (counted.start_ns + counted.end_ns) // 2 >= reference_step.start_ns
    WHERE (counted.start_ns + counted.end_ns) // 2 < reference_step.until_ns
    QUALIFY row_number() OVER (
        PARTITION BY counted.trace_id, counted.device, reference_step.place
        ORDER BY
            least(counted.end_ns, reference_step.until_ns)
            - greatest(counted.start_ns, reference_step.start_ns) DESC,
            counted.step ASC
    ) = 1
)

SELECT
    counted.trace_id,
    counted.device,
    counted.step,
    CASE WHEN alike.is_alike THEN counted.place ELSE by_time.place END AS match_id
FROM counted
INNER JOIN alike USING (source)
LEFT JOIN by_time USING (trace_id, device, step)
