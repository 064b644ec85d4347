-- The padded number of tokens of a step's graph replay: the grid of the kernel that writes the KV cache, one
-- block per token (vLLM's concat_and_cache_mla and reshape_and_cache), which a captured graph replays at its
-- padded size for any batch.
-- grain: trace_id, step
WITH cache_write AS (
    SELECT
        placed.trace_id,
        placed.step,
        try_cast(regexp_extract(activity.grid, '^\[ *([0-9]+)', 1) AS BIGINT) AS tokens
    FROM int_activity_step AS placed
    INNER JOIN int_activity AS rule USING (trace_id, activity_id)
    INNER JOIN raw.gpu_activity AS activity USING (trace_id, activity_id)
    WHERE
        placed.step IS NOT NULL AND rule.is_graph
        AND regexp_matches(rule.name, '\b(?:concat_and_cache_mla|reshape_and_cache(?:_flash)?)_kernel\b')
)

SELECT trace_id, step, max(tokens) AS graph_tokens
FROM cache_write
GROUP BY trace_id, step
HAVING count(DISTINCT tokens) = 1
