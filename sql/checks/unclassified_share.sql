-- severity: warn
-- means: More than 1 % of a source's GPU time has a name that no rule claims.
-- do: Add rules to kernel_rules.toml in the home (`stepledger rules --explain NAME` helps).
SELECT source, sum(dur_ns) FILTER (WHERE category = 'unclassified') / sum(dur_ns) AS share
FROM activity
GROUP BY source
HAVING share > unclassified_share_warn()
