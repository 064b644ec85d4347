-- severity: warn
-- means: Ranks of one source have different numbers of steps with GPU work.
-- do: Data-parallel ranks may differ; tensor-parallel ranks must not: find out what the rank with fewer
--     steps lost.
WITH counted AS (
    SELECT source, trace_id, count(*) FILTER (WHERE activities > 0) AS steps
    FROM steps
    GROUP BY source, trace_id
)

SELECT source, min(steps) AS fewest, max(steps) AS most
FROM counted
GROUP BY source
HAVING min(steps) <> max(steps)
