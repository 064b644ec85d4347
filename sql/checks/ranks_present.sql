-- severity: warn
-- means: Not every rank of the job is in the run (recording one rank is common).
-- do: Drop the other ranks' files into the same run, if you have them.
SELECT source, ranks, ranks_expected
FROM run_facts
WHERE ranks < ranks_expected
