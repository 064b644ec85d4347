-- How the groups of the compared collectives are known. Reads straggler_call (calls.sql).
-- grain: group_source
SELECT DISTINCT group_source
FROM straggler_call
WHERE refusal IS NULL
ORDER BY group_source
