-- Messages of a run, to be matched with the latency table of a file or of another run: rows of the mart
-- bandwidth.
-- grain: source, phase, op, kind, algorithm, ranks, in_bytes, out_bytes, size_source
-- parameters: run_id
SELECT * FROM bandwidth
WHERE run_id = $run_id
ORDER BY ALL
