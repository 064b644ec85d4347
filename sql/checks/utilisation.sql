-- severity: fail
-- means: A device is busy for more time than there is, or exposed time exceeds summed time.
-- do: Report it.
SELECT trace_id, device, exposed_ns, busy_ns, end_ns - start_ns AS span_ns
FROM timeline
WHERE exposed_ns > end_ns - start_ns OR exposed_ns > busy_ns OR exposed_ns < 0
