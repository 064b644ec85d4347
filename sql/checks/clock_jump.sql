-- severity: fail
-- means: A device was idle for more than 10 minutes between two activities: a clock jumped, or time stamps
--     are corrupt.
-- do: Record again; if two captures were merged on purpose, split the trace.
SELECT trace_id, device, start_ns, dur_ns
FROM gaps
WHERE dur_ns > clock_jump_ns()
