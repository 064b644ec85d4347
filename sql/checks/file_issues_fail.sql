-- severity: fail
-- means: A reader counted trouble of severity fail in a file (`stepledger status --issues` lists it).
-- do: As the issue says.
SELECT trace_id, code, event_class, count, example
FROM raw.issue
WHERE severity = 'fail'
