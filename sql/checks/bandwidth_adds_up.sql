-- severity: fail
-- means: A bandwidth is not bytes divided by time, or a bus bandwidth is not that times the operation's
--     wire_ratio.
-- do: Report this as a bug of stepledger, with the trace.
SELECT source, phase, op, size_bytes, floor_us, wire_ratio, algbw_gbps, busbw_gbps
FROM bandwidth
WHERE
    abs(algbw_gbps - size_bytes / nullif(floor_us, 0) / 1e3) > 1e-5 + 1e-3 * algbw_gbps
    OR abs(busbw_gbps - algbw_gbps * wire_ratio) > 1e-5 + 1e-6 * busbw_gbps
    OR (algbw_gbps IS NULL AND size_bytes IS NOT NULL AND floor_us > 0)
