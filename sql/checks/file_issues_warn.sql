-- severity: warn
-- means: The reader of a file found problems of severity warn.
-- do: Run `stepledger status --issues`: it gives the action for each.
SELECT trace_id, code, event_class, count, example
FROM raw.issue
WHERE severity = 'warn'
