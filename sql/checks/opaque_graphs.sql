-- severity: fail
-- means: CUDA graph replays were recorded as a whole: most of what a decode step does is not in the file.
-- do: Record again with `nsys profile --cuda-graph-trace=node`.
SELECT trace_id, count(*) AS graphs, sum(dur_ns) AS dur_ns
FROM activity
WHERE category = 'opaque'
GROUP BY trace_id
