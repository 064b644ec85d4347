-- Median wall time of complete decode steps that another decode step follows, by tokens (padded where a graph
-- was replayed). Units: ms.
-- grain: tokens
-- parameters: run_id, source
SELECT coalesce(graph_tokens, generation_tokens) AS tokens, median(wall_ns) / 1e6 AS ms
FROM steps
WHERE
    run_id = $run_id AND source = $source AND phase = 'decode' AND is_complete AND next_phase = 'decode'
    AND wall_ns IS NOT NULL
    AND coalesce(graph_tokens, generation_tokens) > 0
GROUP BY ALL
ORDER BY ALL
