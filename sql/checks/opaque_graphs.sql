-- severity: fail
-- means: CUDA graph replays were recorded as a whole: 5 % or more of a trace's GPU time is in no kernel.
-- do: Record again with `nsys profile --cuda-graph-trace=node`.
SELECT
    trace_id,
    count(*) FILTER (WHERE category = 'opaque') AS graphs,
    sum(dur_ns) FILTER (WHERE category = 'opaque') AS dur_ns
FROM activity
GROUP BY trace_id
HAVING
    coalesce(sum(dur_ns) FILTER (WHERE category = 'opaque'), 0) >= sum(dur_ns) * opaque_share()
    AND count(*) FILTER (WHERE category = 'opaque') > 0
