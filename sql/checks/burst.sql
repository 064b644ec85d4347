-- severity: fail
-- means: Many kernels share one start time on one stream: their time stamps are those of delivery, not of work (sglang 31545).
-- do: Record again; per-step numbers of that device are refused, its steps are left out as unusable_timestamps.
SELECT trace_id, device, stream, start_ns, count(*) AS kernels
FROM activity
WHERE kind = 'kernel' AND dur_ns > 0
GROUP BY trace_id, device, stream, start_ns
HAVING count(*) >= burst_kernels()
