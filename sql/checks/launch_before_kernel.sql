-- severity: warn
-- means: Kernels start before the call that launched them: the CPU and GPU clocks of the trace disagree.
-- do: Launch lags and causes of gaps are off by that much; times on the GPU are correct.
SELECT activity.trace_id, count(*) AS activities, max(launch.start_ns - activity.start_ns) AS worst_ns
FROM raw.gpu_activity AS activity
INNER JOIN raw.launch AS launch
    ON activity.trace_id = launch.trace_id AND activity.correlation = launch.correlation
WHERE activity.correlation <> 0 AND activity.start_ns < launch.start_ns
GROUP BY activity.trace_id
