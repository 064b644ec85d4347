-- severity: fail
-- means: An activity runs far into the next one on its own stream, which a stream cannot do: its duration is corrupt.
-- do: Record again. Programmatic launches overlap by microseconds; this is 100 us and half the activity or more.
WITH paired AS (
    SELECT
        trace_id,
        activity_id,
        name,
        dur_ns,
        start_ns + dur_ns - lead(start_ns) OVER (PARTITION BY trace_id, device, stream ORDER BY start_ns, activity_id) AS overrun_ns
    FROM activity
    WHERE kind <> 'graph'
)

SELECT trace_id, activity_id, left(name, 80) AS name, dur_ns, overrun_ns
FROM paired
WHERE overrun_ns > 100000 AND overrun_ns * 2 > dur_ns
