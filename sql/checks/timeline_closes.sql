-- severity: fail
-- means: The balance of a device is wrong: exposed + idle + unknown is not end - start, or exposed is not
--     the sum over activities.
-- do: Report this as a bug of stepledger, with the trace: shares of wall time are wrong.
WITH booked AS (SELECT trace_id, device, sum(exposed_ns) AS exposed_ns FROM activity GROUP BY trace_id, device
)

SELECT
    trace_id,
    device,
    timeline.end_ns - timeline.start_ns AS span_ns,
    timeline.exposed_ns,
    timeline.idle_ns,
    timeline.unknown_ns
FROM timeline
FULL JOIN booked USING (trace_id, device)
WHERE
    NOT coalesce(
        timeline.exposed_ns + timeline.idle_ns + timeline.unknown_ns = timeline.end_ns - timeline.start_ns,
        FALSE
    )
    OR NOT coalesce(booked.exposed_ns = timeline.exposed_ns, FALSE)
    OR timeline.idle_ns < 0
