-- Calls that GPU activities link to, one per correlation. Where an id repeats, the earliest call is kept,
-- whole, independent of the order in the file.
-- grain: trace_id, correlation
WITH earliest AS (
    SELECT
        trace_id,
        correlation,
        arg_min(struct_pack(start_ns, name, pid, tid), (start_ns, name, coalesce(pid, 0), coalesce(tid, 0)))
            AS call
    FROM raw.launch
    WHERE correlation <> 0
    GROUP BY trace_id, correlation
)

SELECT
    trace_id,
    correlation,
    call.start_ns,
    call.name,
    call.pid,
    call.tid
FROM earliest
