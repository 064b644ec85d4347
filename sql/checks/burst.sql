-- severity: fail
-- means: Many kernels share one start time on one stream: their time stamps are those of delivery, not of work (sglang 31545).
-- do: Record again; per-step numbers of this trace are worthless.
SELECT trace_id, device, stream, start_ns, count(*) AS kernels
FROM activity
WHERE kind = 'kernel' AND dur_ns > 0
GROUP BY trace_id, device, stream, start_ns
HAVING count(*) >= 20
