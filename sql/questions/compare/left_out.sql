-- Units that are not used. Reads sample_step (steps.sql).
-- grain: one row
SELECT count(DISTINCT unit) FILTER (WHERE NOT is_used) AS units
FROM sample_step
