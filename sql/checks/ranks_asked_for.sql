-- severity: fail
-- means: `describe RUN ranks=all` requires every rank of the job, and some are missing.
-- do: Drop the other ranks' files into the same run.
SELECT run_facts.source, run_facts.ranks, run_facts.ranks_expected
FROM run_facts
CROSS JOIN run_config
WHERE run_config.ranks = 'all' AND run_facts.ranks < run_facts.ranks_expected
