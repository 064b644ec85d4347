-- Requests and tokens of each complete step of each rank, where steps are not matched over ranks.
-- grain: trace_id, device, step
-- parameters: run_id, source, phase
SELECT
    coalesce(context_requests + generation_requests, generation_requests, context_requests) AS requests,
    scheduled_context_tokens AS prompt_tokens,
    graph_tokens,
    kv_tokens / nullif(generation_requests, 0) AS context_tokens
FROM steps
WHERE run_id = $run_id AND source = $source AND phase = $phase AND is_complete
ORDER BY trace_id, device, step
