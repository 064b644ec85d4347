-- Exposed time of compute and of communication: medians over complete steps and ranks. Units: ms.
-- grain: one row
-- parameters: run_id, source, phase, communication (rollups)
WITH step AS (
    SELECT trace_id, device, step
    FROM steps
    WHERE run_id = $run_id AND source = $source AND phase = $phase AND is_complete
),

exposed AS (
    SELECT
        step.*,
        coalesce(sum(work.exposed_ns) FILTER (WHERE list_contains($communication, work.rollup)), 0)
            AS communication_ns,
        sum(work.exposed_ns) AS whole_ns
    FROM step
    INNER JOIN step_breakdown AS work
        ON
            step.trace_id = work.trace_id
            AND step.device = work.device
            AND step.step = work.step
    WHERE work.run_id = $run_id
    GROUP BY ALL
)

SELECT
    median(whole_ns - communication_ns) / 1e6 AS compute_ms,
    median(communication_ns) / 1e6 AS communication_ms
FROM exposed
