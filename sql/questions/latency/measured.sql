-- Rows of the latency tables that landed with a run. Units: bytes, us.
-- grain: bench_id, line, is_in_place
-- parameters: run_id
SELECT op, mode, measured, bytes, bytes_of, tokens, ranks, us, is_in_place, file_name, line
FROM raw.microbench
WHERE run_id = $run_id
ORDER BY bench_id, line, is_in_place
