-- Exposed time of each activity: its own stretch less what higher owners (compute before communication before copies)
-- cover of it. The sum over a device is the union of all its activities, to the nanosecond.
-- grain: trace_id, activity_id
WITH stretch AS (SELECT * FROM int_owner_segment WHERE end_ns > own_ns),

low AS (SELECT * FROM stretch WHERE owner > 1),

begin_cover AS (
    SELECT low.trace_id, low.activity_id, island.covered_ns + least(low.own_ns, island.end_ns) - island.start_ns AS covered_ns
    FROM low
    ASOF JOIN int_busy_interval AS island
        ON low.trace_id = island.trace_id AND low.device = island.device AND low.owner - 1 = island.level AND low.own_ns >= island.start_ns
),

end_cover AS (
    SELECT low.trace_id, low.activity_id, island.covered_ns + least(low.end_ns, island.end_ns) - island.start_ns AS covered_ns
    FROM low
    ASOF JOIN int_busy_interval AS island
        ON low.trace_id = island.trace_id AND low.device = island.device AND low.owner - 1 = island.level AND low.end_ns >= island.start_ns
)

SELECT
    own.trace_id,
    own.activity_id,
    own.device,
    own.owner,
    own.own_ns,
    own.end_ns,
    own.end_ns - own.own_ns - (coalesce(end_cover.covered_ns, 0) - coalesce(begin_cover.covered_ns, 0)) AS exposed_ns
FROM int_owner_segment AS own
LEFT JOIN begin_cover USING (trace_id, activity_id)
LEFT JOIN end_cover USING (trace_id, activity_id)
