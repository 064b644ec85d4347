-- severity: warn
-- means: One activity is most of a step, or of the time outside steps (90 % or more, among at least 20
--     activities).
-- do: Look at the activity; a collective may have waited for another rank.
WITH total AS (
    SELECT trace_id, device, step, sum(dur_ns) AS dur_ns, count(*) AS activities, max(dur_ns) AS longest_ns
    FROM activity
    GROUP BY trace_id, device, step
)

SELECT trace_id, device, step, activities, longest_ns, dur_ns
FROM total
WHERE activities >= dominant_step_activities() AND longest_ns >= dur_ns * dominant_share()
