-- Operators inside which all-reduce kernels run. Units: ms of the kernels.
-- grain: op
-- parameters: run_id
SELECT op, count(*) AS kernels, sum(dur_ns) / 1e6 AS ms
FROM activity
WHERE run_id = $run_id AND category = 'allreduce' AND op IS NOT NULL
GROUP BY op
ORDER BY op
