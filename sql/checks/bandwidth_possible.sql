-- severity: warn
-- means: Messages move more than twice as fast as the given link can carry.
-- do: Correct `link`, hidden_size or tp in run.toml (`stepledger describe`).
SELECT source, phase, op, size_bytes, busbw_gbps, link, link_gbps
FROM bandwidth
WHERE link_share > link_share_possible() AND NOT coalesce(is_latency_bound, FALSE)
