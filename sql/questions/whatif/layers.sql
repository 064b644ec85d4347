-- Layers that all-reduces of a step show, and all-reduces after MoE in it: the most frequent numbers.
-- grain: one row
-- parameters: run_id, source, phase
WITH step AS (
    SELECT trace_id, step, count(*) FILTER (WHERE part = 'after_moe') AS after_moe, max(layer) + 1 AS layers
    FROM collectives
    WHERE run_id = $run_id AND source = $source AND phase = $phase AND category = 'allreduce' AND NOT is_half
    GROUP BY ALL
)

SELECT mode(after_moe) AS after_moe, mode(layers) AS layers
FROM step
