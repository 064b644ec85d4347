-- severity: fail
-- means: GPU time read from a file is not the time in the tables plus the time left out for a named reason
--     (apart from rounding below a nanosecond).
-- do: Report this as a bug of stepledger, with the file: the tables do not hold its GPU time.
WITH landed AS (SELECT trace_id, sum(dur_ns) AS dur_ns FROM raw.gpu_activity GROUP BY trace_id),

skipped AS (
    SELECT issue.trace_id, sum(issue.dur_ns) AS dur_ns
    FROM raw.issue AS issue
    INNER JOIN issue_code ON issue.code = issue_code.code
    WHERE issue_code.is_skip AND issue.event_class IN ('kernel', 'memcpy', 'memset', 'graph')
    GROUP BY issue.trace_id
),

rounded AS (SELECT trace_id, sum(count) AS events FROM raw.issue WHERE code = 'sub_ns_time' GROUP BY trace_id)

SELECT
    trace.trace_id, trace.gpu_ns_read, landed.dur_ns AS landed_ns, coalesce(skipped.dur_ns, 0) AS skipped_ns
FROM raw.trace AS trace
LEFT JOIN landed USING (trace_id)
LEFT JOIN skipped USING (trace_id)
LEFT JOIN rounded USING (trace_id)
WHERE
    abs(trace.gpu_ns_read - coalesce(landed.dur_ns, 0) - coalesce(skipped.dur_ns, 0))
    > coalesce(rounded.events, 0)
