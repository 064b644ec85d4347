-- The rows of the table of one phase, the one with the most time first.
-- grain: rollup
-- parameters: run_id, source, phase
SELECT * FROM run_breakdown
WHERE run_id = $run_id AND source = $source AND phase = $phase
ORDER BY ms_mean DESC, rollup ASC
