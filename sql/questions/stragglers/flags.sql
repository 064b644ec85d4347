-- Compared collectives whose start is not their arrival, by reason. Reads straggler_call (calls.sql).
-- grain: flag
SELECT flag, count(*) AS calls
FROM straggler_call
WHERE refusal IS NULL AND flag IS NOT NULL
GROUP BY ALL
ORDER BY ALL
