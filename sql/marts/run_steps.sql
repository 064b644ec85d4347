-- One forward pass of the whole run: what all ranks together served in it. Ranks of one data-parallel group
-- serve the same requests, so a group counts once, and groups are added; where no file name gives the group,
-- all ranks are assumed to be in one.
-- grain: source, match_id
WITH step AS (
    SELECT steps.*, trace.dp_rank
    FROM steps
    INNER JOIN raw.trace AS trace ON steps.trace_id = trace.trace_id
    WHERE steps.match_id IS NOT NULL
),

by_group AS (
    SELECT
        run_id,
        source,
        match_id,
        dp_rank,
        string_agg(DISTINCT phase, '+' ORDER BY phase) AS phases,
        max(context_requests) AS context_requests,
        max(scheduled_context_tokens) AS scheduled_context_tokens,
        max(generation_requests) AS generation_requests,
        max(generation_tokens) AS generation_tokens,
        max(graph_tokens) AS graph_tokens,
        count(*) AS ranks,
        min(start_ns) AS start_ns,
        max(end_ns) AS end_ns,
        max(wall_ns) AS wall_ns
    FROM step
    GROUP BY run_id, source, match_id, dp_rank
)

SELECT
    run_id,
    source,
    match_id,
    string_agg(DISTINCT phases, '+' ORDER BY phases) AS phases,
    sum(ranks)::BIGINT AS ranks,
    count(*) AS dp_groups,
    sum(context_requests)::BIGINT AS context_requests,
    sum(scheduled_context_tokens)::BIGINT AS scheduled_context_tokens,
    sum(generation_requests)::BIGINT AS generation_requests,
    sum(generation_tokens)::BIGINT AS generation_tokens,
    sum(graph_tokens)::BIGINT AS graph_tokens,
    min(start_ns) AS start_ns,
    max(end_ns) AS end_ns,
    max(wall_ns) AS wall_ns
FROM by_group
GROUP BY run_id, source, match_id
