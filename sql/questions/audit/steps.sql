-- Complete steps with the pipeline stage of their trace. graph_tokens is NULL without a graph, 0 where its
-- size is unknown.
-- grain: trace_id, device, step
-- parameters: run_id, source, stages (trace_id, stage)
WITH stage AS (
    SELECT unnest($stages::STRUCT(trace_id VARCHAR, stage BIGINT)[], recursive := TRUE)
)

SELECT
    steps.trace_id,
    steps.device,
    steps.step,
    steps.rank,
    stage.stage,
    steps.phase,
    CASE WHEN steps.graph_launches > 0 THEN coalesce(steps.graph_tokens, 0) END AS graph_tokens
FROM steps
INNER JOIN stage USING (trace_id)
WHERE steps.run_id = $run_id AND steps.source = $source AND steps.is_complete
