-- Kernels of the usual step of a phase.
-- grain: one row
-- parameters: run_id, source, phase
SELECT quantile_disc(kernels, 0.5) AS kernels
FROM steps
WHERE run_id = $run_id AND source = $source AND phase = $phase AND is_complete
