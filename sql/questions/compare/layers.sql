-- Layers, and layers with experts, that the order of kernels proves.
-- grain: one row
-- parameters: run_id, source, phase
SELECT max(layer) + 1 AS layers, count(DISTINCT layer) FILTER (WHERE category = 'moe_gemm') AS expert_layers
FROM layer_breakdown
WHERE run_id = $run_id AND source = $source AND phase = $phase
