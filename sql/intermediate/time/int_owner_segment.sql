-- Each activity's own segment within its owner class (1 compute, 2 communication, 3 copies): it begins where
-- all activities that started earlier have ended. Segments of one class never overlap, and together they are
-- the union of the class.
-- grain: trace_id, activity_id
WITH activity AS (
    SELECT rule.trace_id, rule.activity_id, rule.device, rule.start_ns, rule.end_ns, category.owner
    FROM int_activity AS rule
    INNER JOIN kernel_rule USING (rule_id)
    INNER JOIN category_info AS category ON kernel_rule.category = category.category
)

SELECT
    *,
    least(
        end_ns,
        greatest(
            start_ns,
            coalesce(
                max(end_ns) OVER (
                    PARTITION BY trace_id, device, owner ORDER BY start_ns, activity_id
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                ),
                start_ns
            )
        )
    ) AS own_ns
FROM activity
