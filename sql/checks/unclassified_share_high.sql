-- severity: fail
-- means: More than 20 % of a source's GPU time has a name that no rule claims: the table hides what matters.
-- do: Add rules to kernel_rules.toml in the home.
SELECT source, sum(dur_ns) FILTER (WHERE category = 'unclassified') / sum(dur_ns) AS share
FROM activity
GROUP BY source
HAVING share > unclassified_share_fail()
