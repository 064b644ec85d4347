-- severity: fail
-- means: The activity mart does not hold every raw GPU activity exactly once, with its duration.
-- do: Report this as a bug of stepledger, with the trace: the attribution lost or duplicated time.
WITH landed AS (
    SELECT trace_id, count(*) AS activities, sum(dur_ns) AS dur_ns FROM raw.gpu_activity GROUP BY trace_id
),

booked AS (SELECT trace_id, count(*) AS activities, sum(dur_ns) AS dur_ns FROM activity GROUP BY trace_id),

broken_down AS (
    SELECT trace_id, sum(calls) AS activities, sum(busy_ns) AS dur_ns FROM step_breakdown GROUP BY trace_id
)

SELECT trace_id, landed.activities, booked.activities AS booked, broken_down.activities AS broken_down
FROM landed
FULL JOIN booked USING (trace_id)
FULL JOIN broken_down USING (trace_id)
WHERE
    NOT coalesce(landed.activities = booked.activities AND landed.dur_ns = booked.dur_ns, FALSE)
    OR NOT coalesce(landed.activities = broken_down.activities AND landed.dur_ns = broken_down.dur_ns, FALSE)
