-- Checks of the current build of a run that failed with severity fail.
-- grain: check
-- parameters: run_id
SELECT DISTINCT quality."check"
FROM quality
INNER JOIN run_facts ON quality.run_id = run_facts.run_id AND quality.build_id = run_facts.build_id
WHERE quality.run_id = $run_id AND NOT quality.is_passed AND quality.severity = 'fail'
ORDER BY ALL
