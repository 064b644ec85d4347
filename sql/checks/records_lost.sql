-- severity: warn
-- means: Steps have fewer kernels than their peers: the profiler lost records. These steps are left out of
--     means; their idle time is unknown.
-- do: Record fewer steps at a time, or with larger profiler buffers.
SELECT trace_id, device, step, incomplete_reason, kernels
FROM steps
WHERE incomplete_reason IN ('records_lost', 'begins_before_capture', 'ends_after_capture')
