-- Used units in the order of time, with the wall time where every rank has one. Reads sample_step
-- (steps.sql). Units: ms, mean over ranks.
-- grain: unit
SELECT
    unit,
    CASE WHEN count(wall_ns) = count(*) THEN avg(wall_ns) / 1e6 END AS wall_ms,
    any_value(match_id) AS match_id,
    max(ranks) AS ranks
FROM sample_step
WHERE is_used
GROUP BY unit
ORDER BY min(start_ns), unit
