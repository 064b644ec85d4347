-- Calls that GPU activities link to, one per correlation (the earliest, should an id repeat).
-- grain: trace_id, correlation
SELECT
    trace_id,
    correlation,
    min(start_ns) AS start_ns,
    arg_min(name, start_ns) AS name,
    arg_min(pid, start_ns) AS pid,
    arg_min(tid, start_ns) AS tid
FROM raw.launch
WHERE correlation <> 0
GROUP BY trace_id, correlation
