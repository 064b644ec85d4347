-- Complete steps of each shape. Reads audit_step (steps.sql).
-- grain: stage, phase, graph_tokens
SELECT stage, phase, graph_tokens, count(*) AS steps
FROM audit_step
GROUP BY ALL
