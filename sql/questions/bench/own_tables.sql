-- Messages of a run beside its own latency tables: rows of the mart bench_vs_trace.
-- grain: source, phase, op, kind, in_bytes, table row
-- parameters: run_id
SELECT * FROM bench_vs_trace
WHERE run_id = $run_id
ORDER BY source, phase, op, kind, in_bytes, mode, table_clock, table_us
