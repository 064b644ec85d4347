-- How many steps each method finds over all traces, whether it is in use, and whether it agrees with the one
-- in use. Confidence is the lowest of the steps of the phase.
-- grain: method, is_used, is_agreed
-- parameters: run_id, source, phase
WITH shown AS (
    SELECT min(confidence) AS confidence
    FROM steps
    WHERE run_id = $run_id AND source = $source AND phase = $phase
),

method AS (
    SELECT
        method,
        is_used,
        is_agreed,
        sum(steps)::BIGINT AS steps,
        sum(compared_with)::BIGINT AS compared_with
    FROM step_methods
    WHERE run_id = $run_id AND source = $source
    GROUP BY ALL
)

SELECT method.*, shown.confidence
FROM method
CROSS JOIN shown
ORDER BY method.method
