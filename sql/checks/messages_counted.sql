-- severity: fail
-- means: The table of bandwidths does not hold every all-reduce of complete steps, and outside steps,
--     exactly once.
-- do: Report this as a bug of stepledger, with the trace.
WITH counted AS (
    SELECT collectives.source, count(*) AS calls
    FROM collectives
    LEFT JOIN steps USING (trace_id, device, step)
    WHERE collectives.category = 'allreduce' AND NOT collectives.is_half AND coalesce(steps.is_complete, TRUE)
    GROUP BY collectives.source
),

booked AS (SELECT source, sum(calls) AS calls FROM bandwidth WHERE op = 'all_reduce' GROUP BY source)

SELECT coalesce(counted.source, booked.source) AS source, counted.calls, booked.calls AS booked_calls
FROM counted
FULL JOIN booked ON counted.source = booked.source
WHERE counted.calls IS DISTINCT FROM booked.calls
