-- The complete steps of one phase of a run. A unit is one step of the engine: a step matched over ranks, or a
-- step of one rank where it is not matched. Units that lack some ranks are not used, unless they are most
-- (ranks that decode while others prefill). wall_ns only where a step of the same phase follows. No aggregate
-- windows here: DuckDB 2.0.1 may turn one into a self-join that forgets the filter on run_id, which pruned
-- files.
-- grain: trace_id, device, step
-- parameters: run_id, source, phase
WITH step AS (
    SELECT
        trace_id,
        device,
        step,
        step_unit(match_id, trace_id, device, step) AS unit,
        match_id,
        start_ns,
        CASE WHEN next_phase = phase THEN wall_ns END AS wall_ns
    FROM steps
    WHERE run_id = $run_id AND source = $source AND phase = $phase AND is_complete
),

size AS (
    SELECT unit, count(*) AS ranks
    FROM step
    GROUP BY unit
),

most AS (
    SELECT max(ranks) AS ranks
    FROM size
),

whole AS (
    SELECT most.ranks, count(*) FILTER (WHERE size.ranks = most.ranks) * 2 >= count(*) AS are_usual
    FROM size
    CROSS JOIN most
    GROUP BY most.ranks
)

SELECT step.*, size.ranks, size.ranks = whole.ranks OR NOT whole.are_usual AS is_used
FROM step
INNER JOIN size USING (unit)
CROSS JOIN whole
