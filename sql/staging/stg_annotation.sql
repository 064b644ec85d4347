-- CPU-side annotations. Their GPU twins are left out: an annotation has a twin on every stream it touched,
-- whose end is not the step's (pytorch/kineto 1022), so twins never count as steps or as GPU time. A range
-- that is still open when recording stops ends with the trace's last launch or activity.
-- grain: one annotation
WITH recorded AS (
    SELECT trace_id, max(end_ns) AS end_ns
    FROM (
        SELECT trace_id, max(start_ns + dur_ns) AS end_ns FROM raw.gpu_activity GROUP BY trace_id
        UNION ALL
        SELECT trace_id, max(start_ns + coalesce(dur_ns, 0)) AS end_ns FROM raw.launch GROUP BY trace_id
    ) AS seen
    GROUP BY trace_id
)

SELECT
    annotation.trace_id,
    annotation.name,
    annotation.pid,
    annotation.tid,
    annotation.start_ns,
    annotation.is_open,
    CASE
        WHEN annotation.is_open THEN greatest(annotation.start_ns, recorded.end_ns)
        ELSE annotation.start_ns + annotation.dur_ns
    END AS end_ns
FROM raw.annotation AS annotation
LEFT JOIN recorded USING (trace_id)
WHERE annotation.side = 'cpu' AND (annotation.is_open OR annotation.dur_ns IS NOT NULL)
