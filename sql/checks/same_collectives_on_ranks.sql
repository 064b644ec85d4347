-- severity: warn
-- means: A matched step has different numbers of collectives on different ranks.
-- do: One rank lost records, or the ranks are not of one group; waiting cannot be computed from their
--     kernels.
WITH counted AS (
    SELECT steps.source, steps.match_id, steps.trace_id, steps.device, coalesce(sum(work.calls), 0) AS calls
    FROM steps
    LEFT JOIN step_breakdown AS work
        ON
            steps.trace_id = work.trace_id AND steps.device = work.device AND steps.step = work.step
            AND work.category IN ('allreduce', 'collective', 'all_to_all')
    WHERE steps.match_id IS NOT NULL AND steps.is_complete
    GROUP BY steps.source, steps.match_id, steps.trace_id, steps.device
)

SELECT source, match_id, min(calls) AS fewest, max(calls) AS most
FROM counted
GROUP BY source, match_id
HAVING min(calls) <> max(calls)
