-- The five kernels with the most time that no rule claims. Units: ms over the whole capture.
-- grain: short_name
-- parameters: run_id, source
SELECT short_name, sum(calls)::BIGINT AS calls, sum(ms_total) AS ms
FROM kernel_breakdown
WHERE run_id = $run_id AND source = $source AND category = 'unclassified'
GROUP BY ALL
ORDER BY ms DESC
LIMIT 5
