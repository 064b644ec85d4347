-- The clock of each rank against the lowest rank of its group, from the common ends of collectives. Units:
-- us.
-- grain: source, rank, ranks
-- parameters: run_id
SELECT
    source,
    rank,
    members AS ranks,
    offset_ns / 1e3 AS offset_us,
    residual_ns / 1e3 AS residual_us,
    residual_p99_ns / 1e3 AS residual_p99_us,
    calls
FROM rank_clock
WHERE run_id = $run_id
ORDER BY ALL
