-- severity: warn
-- means: A file is truncated; its complete events were read.
-- do: Copy or record it again; its last step is missing or incomplete.
SELECT trace_id, file_name
FROM raw.trace
WHERE is_truncated
