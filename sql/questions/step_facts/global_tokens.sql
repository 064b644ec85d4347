-- The most frequent number of tokens of a step over all data-parallel groups; NULL where steps are not
-- matched across ranks.
-- grain: one row
-- parameters: run_id, source, phase
SELECT mode(coalesce(graph_tokens, generation_tokens)) AS tokens
FROM run_steps
WHERE run_id = $run_id AND source = $source AND phases = $phase
