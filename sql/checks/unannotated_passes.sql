-- severity: warn
-- means: Whole forward passes ran that no annotation covers; each is a step of its own, phase dummy.
-- do: Idle data-parallel ranks run dummy batches; otherwise more passes ran than were annotated, and totals per annotation mislead.
SELECT trace_id, count(*) AS passes, sum(busy_ns) AS busy_ns
FROM steps
WHERE phase = 'dummy' AND label IS NULL
GROUP BY trace_id
