-- The most frequent size of the complete steps of a phase on one rank (tokens as padded where a graph was
-- replayed), their number, and the median wall time of those that a step of the same phase follows. Units:
-- ms.
-- grain: one row
-- parameters: run_id, source, phase
SELECT
    mode(coalesce(graph_tokens, generation_tokens)) AS tokens,
    mode(generation_requests) AS requests,
    count(DISTINCT step) AS steps,
    median(wall_ns) FILTER (WHERE next_phase = phase) / 1e6 AS wall_ms
FROM steps
WHERE run_id = $run_id AND source = $source AND phase = $phase AND is_complete
