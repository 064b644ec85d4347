-- severity: fail
-- means: One activity other than communication is most of a device's busy time (90 % or more, among at least
--     100 activities): its duration is corrupt.
-- do: Look at the activity, and record again.
WITH total AS (
    SELECT
        trace_id, device, sum(dur_ns) AS dur_ns, count(*) AS activities,
        max(dur_ns) FILTER (WHERE NOT is_communication(category)) AS longest_ns
    FROM activity
    GROUP BY trace_id, device
)

SELECT trace_id, device, activities, longest_ns, dur_ns
FROM total
WHERE activities >= dominant_activities() AND longest_ns >= dur_ns * dominant_share()
