-- The longest wait that is jitter under any of the clocks of a run, and the fewest calls that a clock rests
-- on. Units: us.
-- grain: one row
-- parameters: run_id
SELECT max(jitter_ns() + residual_ns) / 1e3 AS jitter_us, min(calls) AS calls
FROM rank_clock
WHERE run_id = $run_id
