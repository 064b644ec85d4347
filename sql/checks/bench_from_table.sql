-- severity: fail
-- means: A latency beside the trace differs from the table's file, or the ratio is not that of the two.
-- do: Report this as a bug of stepledger, with the trace.
SELECT beside.op, beside.bench_id, beside.line, beside.table_us, bench.us
FROM bench_vs_trace AS beside
LEFT JOIN raw.microbench AS bench
    ON
        beside.bench_id = bench.bench_id AND beside.line = bench.line AND beside.op = bench.op
        AND coalesce(
            beside.is_in_place = bench.is_in_place, beside.is_in_place IS NULL AND bench.is_in_place IS NULL
        )
WHERE
    bench.us IS NULL OR bench.us <> beside.table_us
    OR abs(beside.ratio - beside.trace_us_p50 / beside.table_us) > 1e-6 + 1e-3 * beside.ratio
