-- Communication, and all GPU time, of the complete steps of a phase: medians and means over steps of the mean
-- over ranks, and the medians of the lowest and the highest rank. Units: ms.
-- grain: name
-- parameters: run_id, source, phase, communication (rollups)
WITH step AS (
    SELECT trace_id, device, step, step_unit(match_id, trace_id, device, step) AS unit
    FROM steps
    WHERE run_id = $run_id AND source = $source AND phase = $phase AND is_complete
),

subtotal (name, is_part) AS (
    VALUES ('Communication', TRUE), ('All GPU time', FALSE)
),

booked AS (
    SELECT step.*, subtotal.name, sum(work.busy_ns) AS busy_ns, sum(work.exposed_ns) AS exposed_ns
    FROM step
    INNER JOIN step_breakdown AS work
        ON
            step.trace_id = work.trace_id
            AND step.device = work.device
            AND step.step = work.step
    INNER JOIN subtotal ON NOT subtotal.is_part OR list_contains($communication, work.rollup)
    WHERE work.run_id = $run_id
    GROUP BY ALL
),

by_unit AS (
    SELECT name, unit, avg(busy_ns) AS busy_ns, avg(exposed_ns) AS exposed_ns
    FROM booked
    GROUP BY ALL
),

by_rank AS (
    SELECT name, trace_id, device, median(busy_ns) AS busy_ns
    FROM booked
    GROUP BY ALL
),

spread AS (
    SELECT name, min(busy_ns) AS lowest_ns, max(busy_ns) AS highest_ns
    FROM by_rank
    GROUP BY name
)

SELECT
    name,
    median(by_unit.busy_ns) / 1e6 AS ms_p50,
    avg(by_unit.busy_ns) / 1e6 AS ms_mean,
    median(by_unit.exposed_ns) / 1e6 AS exposed_ms_p50,
    any_value(spread.lowest_ns) / 1e6 AS ms_rank_min,
    any_value(spread.highest_ns) / 1e6 AS ms_rank_max
FROM by_unit
INNER JOIN spread USING (name)
GROUP BY name
ORDER BY name DESC
