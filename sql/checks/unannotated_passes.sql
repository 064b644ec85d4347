-- severity: warn
-- means: Whole forward passes ran that no annotation covers; they are in no step.
-- do: Idle data-parallel ranks run dummy batches; otherwise more passes ran than were annotated, and totals divided by steps mislead.
SELECT trace_id, count(*) AS activities, sum(dur_ns) AS dur_ns
FROM activity
WHERE no_step_reason = 'unannotated_pass'
GROUP BY trace_id
