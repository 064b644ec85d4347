-- severity: warn
-- means: More than half of a trace's marked steps launched no GPU work: the GPU side was not recorded for
--     them.
-- do: Record again; all GPU events may be in a few steps (TraceLens 972).
SELECT trace_id, count(*) AS steps, count(*) FILTER (WHERE phase = 'empty') AS empty_steps
FROM steps
GROUP BY trace_id
HAVING count(*) FILTER (WHERE phase = 'empty') * 2 > count(*)
