-- CPU-side annotations. The GPU twins are left out: one annotation has a twin on every stream it touched, with an end
-- that is not the step's (pytorch/kineto 1022), so they never count as steps nor as GPU time.
-- grain: one annotation
SELECT
    trace_id,
    name,
    pid,
    tid,
    start_ns,
    start_ns + dur_ns AS end_ns
FROM raw.annotation
WHERE side = 'cpu' AND dur_ns IS NOT NULL
