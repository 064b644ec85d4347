-- Messages of a run, of one phase or (NULL) of all: rows of the mart bandwidth.
-- grain: source, phase, op, kind, algorithm, ranks, in_bytes, out_bytes, size_source
-- parameters: run_id, phase
SELECT * FROM bandwidth
WHERE run_id = $run_id AND coalesce(phase = $phase, TRUE)
ORDER BY source, phase, op, size_bytes, kind, algorithm, calls
