-- The first rule that claims each distinct (kind, name, operators around the launch). Rules run once per
-- distinct name, not once per activity.
-- grain: kind, name, ops
WITH distinct_name AS (
    SELECT DISTINCT kind, name, ops FROM int_activity_launch
)

SELECT
    distinct_name.*,
    CASE
        WHEN distinct_name.kind = 'graph' THEN 'opaque_graph'
        ELSE first_rule(distinct_name.name, distinct_name.ops)
    END AS rule_id
FROM distinct_name
