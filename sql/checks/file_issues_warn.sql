-- severity: warn
-- means: A reader counted trouble of severity warn in a file.
-- do: As the issue says.
SELECT trace_id, code, event_class, count, example
FROM raw.issue
WHERE severity = 'warn'
