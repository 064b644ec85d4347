-- The ranks that a rank communicates with, by purpose: tp (all-reduce, logits), ep (dispatch, combine), any
-- (where all purposes have the same ranks). The first source that applies wins: the groups of run_config;
-- its sizes, with ranks numbered tensor-parallel first, then pipeline, then data-parallel; the ranks in file
-- names; a recording of two ranks, which leaves one possibility. Otherwise there is no row. A group with a
-- rank that is not in the recording keeps its size.
-- grain: recording, rank, purpose
WITH present AS (
    SELECT
        *,
        bool_and(tp_rank IS NOT NULL) OVER (PARTITION BY recording) AS is_named,
        max(coalesce(dp_rank, 0)) OVER (PARTITION BY recording) > 0 AS is_dp_named
    FROM int_recording
    WHERE recording IS NOT NULL AND world_size > 1
),

given_part AS (
    SELECT unnest(string_split(run_config.groups, ';')) AS part FROM run_config
    WHERE run_config.groups IS NOT NULL
),

given_rank AS (
    SELECT
        part,
        trim(split_part(part, ':', 1)) AS purpose,
        unnest(string_split(split_part(part, ':', 2), ','))::INTEGER AS rank
    FROM given_part
),

given_group AS (
    SELECT part, purpose, string_agg(rank, ',' ORDER BY rank) AS members, count(*) AS group_size
    FROM given_rank
    GROUP BY part, purpose
),

given AS (
    SELECT
        present.recording,
        present.rank,
        given_group.purpose,
        given_group.members,
        given_group.group_size,
        1 AS trust,
        'groups' AS group_source
    FROM given_group
    INNER JOIN given_rank USING (part, purpose)
    INNER JOIN present USING (rank)
),

size AS (
    SELECT
        coalesce(tp, 1) AS tp,
        coalesce(pp, 1) AS pp,
        coalesce(dp, 1) AS dp,
        CASE
            WHEN coalesce(pp, 1) = 1 THEN coalesce(ep, coalesce(tp, 1) * coalesce(dp, 1))
            WHEN coalesce(dp, 1) = 1 THEN coalesce(tp, 1)
        END AS ep
    FROM run_config
    WHERE coalesce(tp, pp, dp) IS NOT NULL
),

of_size AS (
    SELECT
        present.recording,
        present.rank,
        purpose.purpose,
        CASE purpose.purpose WHEN 'tp' THEN size.tp ELSE size.ep END AS group_size
    FROM present
    INNER JOIN size ON present.world_size = size.tp * size.pp * size.dp
    CROSS JOIN (VALUES ('tp'), ('ep')) AS purpose (purpose)
),

by_size AS (
    SELECT
        recording,
        rank,
        purpose,
        array_to_string(
            range((rank // group_size) * group_size, (rank // group_size + 1) * group_size), ','
        ) AS members,
        group_size,
        2 AS trust,
        'sizes' AS group_source
    FROM of_size
    WHERE group_size IS NOT NULL
),

named AS (
    SELECT
        recording,
        rank,
        'tp' AS purpose,
        string_agg(rank, ',') OVER in_group AS members,
        CASE WHEN ranks < world_size THEN world_size ELSE count(*) OVER in_group END AS group_size
    FROM present
    WHERE is_named
    WINDOW
        in_group AS (
            PARTITION BY recording, dp_rank, pp_rank
            ORDER BY rank ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
        )
    UNION ALL
    SELECT
        recording,
        rank,
        'ep' AS purpose,
        string_agg(rank, ',') OVER in_group AS members,
        CASE WHEN ranks < world_size THEN world_size ELSE count(*) OVER in_group END AS group_size
    FROM present
    WHERE is_named
    WINDOW
        in_group AS (
            PARTITION BY recording, pp_rank
            ORDER BY rank ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
        )
),

by_name AS (
    SELECT *, 3 AS trust, 'file names' AS group_source FROM named
),

two AS (
    SELECT
        present.recording,
        present.rank,
        purpose.purpose,
        string_agg(present.rank, ',') OVER (
            PARTITION BY present.recording, purpose.purpose
            ORDER BY present.rank ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
        ) AS members,
        2 AS group_size,
        4 AS trust,
        'only two ranks' AS group_source
    FROM present
    CROSS JOIN (VALUES ('tp'), ('ep')) AS purpose (purpose)
    WHERE present.world_size = 2
),

known AS (
    SELECT * FROM given
    UNION ALL
    SELECT * FROM by_size
    UNION ALL
    SELECT * FROM by_name
    UNION ALL
    SELECT * FROM two
),

best AS (
    SELECT known.*, present.world_size
    FROM known
    INNER JOIN present USING (recording, rank)
    QUALIFY known.trust = min(known.trust) OVER (PARTITION BY known.recording)
)

SELECT recording, rank, purpose, members, group_size, group_source FROM best
UNION ALL
SELECT
    recording,
    rank,
    'any' AS purpose,
    min(members) AS members,
    min(group_size) AS group_size,
    min(group_source) AS group_source
FROM best
GROUP BY recording, rank
HAVING count(DISTINCT members) = 1 AND (count(DISTINCT purpose) > 1 OR min(group_size) = min(world_size))
