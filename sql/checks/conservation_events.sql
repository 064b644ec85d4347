-- severity: fail
-- means: Events of a file are neither in a raw table nor counted under a reason for leaving them out.
-- do: Report this as a bug of stepledger, with the file: events were lost or invented.
WITH skipped AS (
    SELECT issue.trace_id, sum(issue.count) AS events
    FROM raw.issue AS issue
    INNER JOIN issue_code ON issue.code = issue_code.code
    WHERE issue_code.is_skip
    GROUP BY issue.trace_id
)

SELECT trace.trace_id, trace.events_read, trace.events_kept, coalesce(skipped.events, 0) AS events_skipped
FROM raw.trace AS trace
LEFT JOIN skipped USING (trace_id)
WHERE trace.events_read <> trace.events_kept + coalesce(skipped.events, 0)
