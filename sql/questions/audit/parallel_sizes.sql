-- Parallel sizes that the names of a source's files prove (are_named: every trace has a name with them), and
-- its ranks.
-- grain: one row
-- parameters: run_id, source
SELECT
    max(tp_rank) + 1 AS tp,
    max(pp_rank) + 1 AS pp,
    max(dp_rank) + 1 AS dp,
    count(tp_rank) = count(*) AS are_named,
    count(DISTINCT rank) AS ranks,
    max(world_size) AS world_size
FROM raw.trace
WHERE run_id = $run_id AND source = $source
