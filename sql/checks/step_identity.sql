-- severity: fail
-- means: The parts of a step's wall do not add up to it.
-- do: Report it; the step's breakdown cannot be trusted.
SELECT trace_id, device, step, wall_ns, exposed_ns, exposed_outside_ns, borrowed_ns, idle_inside_ns, gap_after_ns
FROM steps
WHERE
    wall_ns IS NOT NULL
    AND NOT coalesce(wall_ns = exposed_ns - exposed_outside_ns + borrowed_ns + idle_inside_ns + gap_after_ns, FALSE)
