-- severity: fail
-- means: The parts of a step's wall time do not add up to it.
-- do: Report this as a bug of stepledger, with the trace: the step's breakdown is wrong.
SELECT
    trace_id, device, step, wall_ns, exposed_ns, exposed_outside_ns, borrowed_ns, idle_inside_ns, gap_after_ns
FROM steps
WHERE
    wall_ns IS NOT NULL
    AND NOT coalesce(
        wall_ns = exposed_ns - exposed_outside_ns + borrowed_ns + idle_inside_ns + gap_after_ns, FALSE
    )
