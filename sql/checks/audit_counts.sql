-- severity: fail
-- means: The audit of collectives counts different kernels than the breakdown of the steps.
-- do: Report this as a bug of stepledger, with the trace.
WITH audited AS (
    SELECT trace_id, device, category, subcategory, sum(kernels) AS calls, sum(busy_ns) AS busy_ns
    FROM allreduce_audit
    GROUP BY ALL
),

booked AS (
    SELECT trace_id, device, category, subcategory, sum(calls) AS calls, sum(busy_ns) AS busy_ns
    FROM step_breakdown
    WHERE step IS NOT NULL AND is_communication(category)
    GROUP BY ALL
)

SELECT
    coalesce(booked.trace_id, audited.trace_id) AS trace_id,
    coalesce(booked.category, audited.category) AS category,
    coalesce(booked.subcategory, audited.subcategory) AS subcategory,
    booked.calls AS booked_calls,
    audited.calls AS audited_calls,
    booked.busy_ns AS booked_ns,
    audited.busy_ns AS audited_ns
FROM booked
FULL JOIN audited
    ON
        booked.trace_id = audited.trace_id
        AND booked.device = audited.device
        AND booked.category = audited.category
        AND coalesce(booked.subcategory, '') = coalesce(audited.subcategory, '')
WHERE coalesce(booked.calls <> audited.calls OR booked.busy_ns <> audited.busy_ns, TRUE)
