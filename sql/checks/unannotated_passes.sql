-- severity: warn
-- means: Whole forward passes ran outside every annotation; each is a step of its own, with phase dummy.
-- do: Idle data-parallel ranks run dummy batches; otherwise more passes ran than were annotated, and totals
--     per annotation are too high.
SELECT trace_id, count(*) AS passes, sum(busy_ns) AS busy_ns
FROM steps
WHERE phase = 'dummy' AND label IS NULL
GROUP BY trace_id
