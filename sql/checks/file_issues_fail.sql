-- severity: fail
-- means: A reader counted trouble of severity fail in a file.
-- do: See `stepledger status --issues`: it says of each what to do.
SELECT trace_id, code, event_class, count, example
FROM raw.issue
WHERE severity = 'fail'
