-- severity: warn
-- means: Two methods of finding steps disagree.
-- do: Compare both counts with what you know of the run; unannotated passes (idle data-parallel ranks)
--     explain additional replays.
SELECT trace_id, method, steps, compared_with
FROM step_methods
WHERE NOT is_agreed AND method <> 'pattern'
