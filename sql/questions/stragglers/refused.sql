-- Collectives that cannot be compared across ranks, by operation and reason, with the first call at which the
-- ranks part. Reads straggler_call (calls.sql). Units: ms.
-- grain: source, operation, refusal
WITH refused AS (
    SELECT
        source,
        operation,
        refusal,
        dur_ns,
        match_id,
        CASE
            WHEN refused_call IS NOT NULL
                THEN first_value(concat('step ', step, ', call ', call, ', ', position)) OVER (
                    PARTITION BY source, match_id, communicator, refusal
                    ORDER BY call <> refused_call, rank
                )
        END AS first_at
    FROM straggler_call
    WHERE refusal IS NOT NULL
)

SELECT
    source,
    operation,
    refusal,
    count(*) AS calls,
    sum(dur_ns) / 1e6 AS ms,
    arg_min(first_at, match_id) AS first_position
FROM refused
GROUP BY ALL
ORDER BY ALL
