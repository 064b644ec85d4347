-- The most frequent all-reduce of the steps of a phase, one of known size first: a row of the mart bandwidth.
-- grain: one row
-- parameters: run_id, source, phase
SELECT * FROM bandwidth
WHERE run_id = $run_id AND source = $source AND phase = $phase AND op = 'all_reduce'
ORDER BY size_bytes IS NULL ASC, calls DESC, kind ASC
LIMIT 1
