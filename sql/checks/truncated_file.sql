-- severity: warn
-- means: A file ended early; what was complete in it was read.
-- do: Copy or record it again; its last step is missing or cut.
SELECT trace_id, file_name
FROM raw.trace
WHERE is_truncated
