-- Devices of traces whose kernels arrived in a burst: so many kernels of one stream share a start
-- (burst_kernels) that their time stamps are those of delivery, not of execution, and no step of theirs has
-- a usable time (sglang 31545).
-- grain: trace_id, device
WITH same_start AS (
    SELECT trace_id, device, stream, start_ns
    FROM stg_activity
    WHERE kind = 'kernel' AND dur_ns > 0
    GROUP BY trace_id, device, stream, start_ns
    HAVING count(*) >= burst_kernels()
)

SELECT trace_id, device, count(*) AS bursts
FROM same_start
GROUP BY trace_id, device
