-- Requests and tokens of each matched step over all data-parallel groups, and the context of a request (mean
-- over ranks).
-- grain: match_id
-- parameters: run_id, source, phase, matches (match_id)
WITH context AS (
    SELECT match_id, avg(kv_tokens / nullif(generation_requests, 0)) AS context_tokens
    FROM steps
    WHERE run_id = $run_id AND source = $source AND phase = $phase AND is_complete
    GROUP BY match_id
)

SELECT
    coalesce(
        step.context_requests + step.generation_requests, step.generation_requests, step.context_requests
    ) AS requests,
    step.scheduled_context_tokens AS prompt_tokens,
    step.graph_tokens,
    context.context_tokens
FROM run_steps AS step
INNER JOIN context USING (match_id)
WHERE step.run_id = $run_id AND step.source = $source AND list_contains($matches, step.match_id)
ORDER BY step.match_id
