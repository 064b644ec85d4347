-- severity: fail
-- means: Shares of a phase, or of a step, do not sum to 1.
-- do: Report this as a bug of stepledger, with the trace.
WITH shares AS (
    SELECT source || ' ' || phase AS whole, sum(share) AS share FROM run_breakdown GROUP BY whole
    UNION ALL
    SELECT concat_ws(' ', trace_id, device, step) AS whole, sum(busy_share) AS share
    FROM step_breakdown
    GROUP BY whole
    HAVING sum(busy_ns) > 0
)

SELECT whole, share
FROM shares
WHERE abs(share - 1) > 1e-6
