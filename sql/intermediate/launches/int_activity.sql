-- Each activity with the rule that claims it: by name and operator, then by its neighbors on the stream
-- where a rule requires them (the sum over experts is a plain reduce_kernel; only its position after an
-- expert GEMM identifies it). Of the two rules, the one that is tried first wins: a user's rule by name
-- precedes our rules by position.
-- grain: trace_id, activity_id
WITH named AS (
    SELECT
        activity.*,
        name_rule.rule_id AS name_rule_id,
        rule.category AS name_category,
        rule.sort_order AS name_order
    FROM int_activity_launch AS activity
    INNER JOIN int_name_rule AS name_rule
        ON
            activity.kind = name_rule.kind
            AND activity.name = name_rule.name
            AND activity.ops IS NOT DISTINCT FROM name_rule.ops
    LEFT JOIN kernel_rule AS rule ON name_rule.rule_id = rule.rule_id
),

placed AS (
    SELECT
        *,
        lag(name_category) OVER on_stream AS category_before,
        lead(name_category) OVER on_stream AS category_after
    FROM named
    WINDOW on_stream AS (PARTITION BY trace_id, device, stream ORDER BY start_ns, activity_id)
),

by_place AS (
    SELECT *, neighbor_rule(name, category_before, category_after) AS place_rule_id
    FROM placed
)

SELECT
    by_place.* EXCLUDE (
        name_rule_id, name_category, name_order, category_before, category_after, place_rule_id
    ),
    CASE
        WHEN rule.sort_order > by_place.name_order THEN by_place.name_rule_id
        ELSE coalesce(by_place.place_rule_id, by_place.name_rule_id, 'unclassified')
    END AS rule_id
FROM by_place
LEFT JOIN kernel_rule AS rule ON by_place.place_rule_id = rule.rule_id
