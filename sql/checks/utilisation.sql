-- severity: fail
-- means: A device is busy for longer than the trace lasts, or exposed time exceeds summed time.
-- do: Report this as a bug of stepledger, with the trace.
SELECT trace_id, device, exposed_ns, busy_ns, end_ns - start_ns AS span_ns
FROM timeline
WHERE exposed_ns > end_ns - start_ns OR exposed_ns > busy_ns OR exposed_ns < 0
