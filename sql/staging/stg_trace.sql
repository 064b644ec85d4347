-- Traces of the run, with the columns that models use.
-- grain: trace_id
SELECT
    run_id,
    trace_id,
    source,
    rank,
    world_size,
    gpu_name,
    vendor
FROM raw.trace
