-- Idle time by phase, place, size class and following category: the number of gaps and their time in ns.
-- grain: trace_id, device, phase, place, size_class, category_after
SELECT
    run_id,
    source,
    trace_id,
    any_value(rank) AS rank,
    device,
    phase,
    place,
    size_class,
    category_after,
    count(*) AS gaps,
    sum(dur_ns)::BIGINT AS dur_ns,
    count(*) FILTER (WHERE is_host_late) AS gaps_host_late
FROM gaps
GROUP BY run_id, source, trace_id, device, phase, place, size_class, category_after
