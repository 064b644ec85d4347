-- severity: info
-- means: A first step holds a collective that waited for another rank's profiler to start. It is left out of
--     means.
-- do: Nothing.
SELECT trace_id, device, step, busy_ns
FROM steps
WHERE incomplete_reason = 'capture_start_skew'
