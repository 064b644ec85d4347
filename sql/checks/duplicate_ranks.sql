-- severity: warn
-- means: Several traces of one source have the same rank: files of two captures, or one capture twice, may
--     be in one run.
-- do: Put captures into runs of their own. Independent data-parallel replicas all have rank 0: then this is
--     fine.
SELECT source, rank, count(*) AS traces, string_agg(trace_id, ' ' ORDER BY trace_id) AS trace_ids
FROM raw.trace
WHERE rank IS NOT NULL
GROUP BY source, rank
HAVING count(*) > 1
