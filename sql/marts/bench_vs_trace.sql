-- Latency tables of the run beside its traces: the same operation with the same bytes in (or out, where the
-- table gives output bytes), and the same ranks where the table gives them. A table that does not say which
-- buffer its bytes count matches only where both buffers have one size. Clocks are named: a wall time
-- includes the launch and what lies between calls, a kernel's duration does not; a ratio across clocks is
-- not a speedup.
-- grain: source, phase, op, kind, algorithm, ranks, in_bytes, out_bytes, size_source, bench_id, line,
-- is_in_place
SELECT
    trace.run_id,
    trace.source,
    trace.phase,
    trace.op,
    trace.kind,
    trace.algorithm,
    trace.ranks,
    trace.in_bytes,
    trace.out_bytes,
    trace.size_source,
    bench.bench_id,
    bench.file_name,
    bench.line,
    bench.is_in_place,
    bench.mode,
    bench.measured AS table_clock,
    bench.ranks AS table_ranks,
    bench.us AS table_us,
    bench.statistic AS table_statistic,
    'kernel' AS trace_clock,
    trace.calls,
    trace.us_p50 AS trace_us_p50,
    trace.floor_us AS trace_floor_us,
    trace.floor_source,
    trace.wait_share,
    bench.measured = 'kernel' AS is_same_clock,
    round(trace.us_p50 / bench.us, 6) AS ratio,
    round(trace.floor_us / bench.us, 6) AS floor_ratio
FROM bandwidth AS trace
INNER JOIN raw.microbench AS bench
    ON
        trace.op = bench.op
        AND bench.bytes = CASE
            WHEN bench.bytes_of = 'output' THEN trace.out_bytes
            WHEN bench.bytes_of IS NOT NULL OR trace.in_bytes = trace.out_bytes THEN trace.in_bytes
        END
        AND coalesce(trace.ranks = bench.ranks, TRUE)
