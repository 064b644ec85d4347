-- severity: fail
-- means: Many kernels share one start time on one stream: their time stamps are those of delivery, not of
--     execution (sglang 31545).
-- do: Record again; this device has no per-step numbers, and its steps are left out as unusable_timestamps.
SELECT trace_id, device, stream, start_ns, count(*) AS kernels
FROM activity
WHERE kind = 'kernel' AND dur_ns > 0
GROUP BY trace_id, device, stream, start_ns
HAVING count(*) >= burst_kernels()
