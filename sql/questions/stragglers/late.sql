-- Stragglers of complete steps and what made them late. Units: ms over all steps.
-- grain: source, phase, straggler_rank, made_late_by
-- parameters: run_id
WITH step AS (
    SELECT DISTINCT
        source,
        phase,
        match_id,
        straggler_rank,
        coalesce(late_category, 'unknown') AS made_late_by,
        caused_ns,
        late_ns
    FROM step_waiting
    WHERE run_id = $run_id AND is_complete AND straggler_rank IS NOT NULL
)

SELECT
    source,
    phase,
    straggler_rank,
    made_late_by,
    count(*) AS steps,
    sum(caused_ns) / 1e6 AS wait_caused_ms,
    sum(coalesce(late_ns, 0)) / 1e6 AS late_by_ms
FROM step
GROUP BY ALL
ORDER BY source ASC, phase ASC, wait_caused_ms DESC, straggler_rank ASC, made_late_by ASC
