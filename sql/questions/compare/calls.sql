-- Calls in a step of a rank by row of the table: fewest, most frequent, most.
-- grain: rollup
-- parameters: run_id, source, phase
SELECT rollup, calls_min, calls_mode, calls_max
FROM run_breakdown
WHERE run_id = $run_id AND source = $source AND phase = $phase
