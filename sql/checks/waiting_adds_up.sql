-- severity: fail
-- means: Floor and waiting time of a collective, or of a step, do not add up to its duration.
-- do: Report this as a bug of stepledger, with the trace.
SELECT trace_id, step, activity_id, dur_ns, floor_ns, wait_ns
FROM collectives
WHERE
    (refusal IS NULL) <> (floor_ns IS NOT NULL)
    OR (refusal IS NULL AND coalesce(floor_ns + wait_ns <> dur_ns, TRUE))
UNION ALL
SELECT trace_id, step, NULL AS activity_id, dur_ns, floor_ns, wait_ns
FROM step_waiting
WHERE floor_ns + wait_ns + first_wait_ns + jitter_ns <> dur_ns
