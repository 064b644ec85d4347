-- Collectives of a run with their operation in words.
-- grain: trace_id, activity_id
-- parameters: run_id
SELECT
    *,
    CASE category
        WHEN 'allreduce' THEN 'all-reduce'
        WHEN 'all_to_all' THEN 'all-to-all'
        ELSE replace(coalesce(subcategory, category), '_', '-')
    END AS operation
FROM collectives
WHERE run_id = $run_id
