-- GPU activities with their end. Correlation 0 means that no launch is linked (RCCL), so it becomes NULL.
-- grain: trace_id, activity_id
SELECT
    activity.trace_id,
    activity.activity_id,
    activity.kind,
    activity.name,
    coalesce(activity.device, 0) AS device,
    activity.stream,
    activity.start_ns,
    activity.dur_ns,
    activity.start_ns + activity.dur_ns AS end_ns,
    nullif(activity.correlation, 0) AS correlation
FROM raw.gpu_activity AS activity
