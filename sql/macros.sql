-- Shared expressions of models, checks and questions.

-- A kernel name in Kineto's spelling, from Kineto's or from nsys's: without casts and suffixes of template
-- numbers (`(int)4`, `4ul`), `(bool)1` as true, `[lambda() (instance 1)]` as `{lambda()#1}`, `const T *` as
-- `T const*`, no blanks between closing brackets, template arguments that are functions without return type
-- and parameters.
CREATE OR REPLACE TEMP MACRO one_spelling(name) AS
regexp_replace(
    regexp_replace(
        regexp_replace(
            regexp_replace(
                regexp_replace(
                    regexp_replace(
                        regexp_replace(
                            replace(
                                replace(
                                    replace(
                                        replace(replace(name, '(bool)0', 'false'), '(bool)1', 'true'),
                                        'operator ()',
                                        'operator()'
                                    ),
                                    '> >', '>>'
                                ),
                                '> >', '>>'
                            ),
                            '\((?:unsigned )?(?:char|short|int|long|long long)\)(-?\d)', '\1', 'g'
                        ),
                        '\b(\d+)(?:ull|ul|ll|l|u)\b', '\1', 'g'
                    ),
                    '([\w>]) ([*&])', '\1\2', 'g'
                ),
                '\bconst ([\w:]+)\*', '\1 const*', 'g'
            ),
            '\[(lambda\([^()]*\)) \(instance (\d+)\)\]', '{\1#\2}', 'g'
        ),
        '([<,] ?)void ([A-Za-z_]\w*::)', '\1\2', 'g'
    ),
    '&\((?:[\w:]+ )?([\w:]+(?:<[^()]*>)?)\([^()]*\)\)', '&\1', 'g'
);

-- Kernel name without return type and parameter list, in one spelling: `void f<int>(int const*)` is
-- `f<int>`, in Kineto's traces and in nsys's reports. Only the last balanced parenthesis is a parameter
-- list; those in template arguments stay.
CREATE OR REPLACE TEMP MACRO short_name(name) AS
regexp_replace(
    regexp_replace(one_spelling(name), '^(?:void |std::enable_if<.*>::type )', ''),
    '\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)(?: const)?$',
    ''
);

-- Milliseconds of a number of nanoseconds, to the nanosecond: rounded so that the order of summation never
-- shows.
CREATE OR REPLACE TEMP MACRO ns_to_ms(ns) AS round(ns / 1e6, 6);

-- A share, rounded for the same reason; NULL instead of a division by zero.
CREATE OR REPLACE TEMP MACRO share_of(part, whole) AS round(part / nullif(whole, 0), 9);

-- Attention proper: neither the kernel that combines its splits nor the indexer that selects what it attends
-- to.
CREATE OR REPLACE TEMP MACRO is_attention(category, subcategory) AS
category = 'attention' AND coalesce(subcategory NOT IN ('combine', 'indexer'), TRUE);

-- A norm, or an all-reduce that is fused with one.
CREATE OR REPLACE TEMP MACRO is_norm(category, subcategory) AS
category = 'norm' OR coalesce(subcategory = 'fused_norm', FALSE);

-- The MLP of a layer, dense or of experts.
CREATE OR REPLACE TEMP MACRO is_mlp(category) AS category IN ('activation', 'moe_gemm');

-- Rows of `points` (trace_id, device, level, at_ns) with covered_ns: the time before at_ns that activities
-- of owner classes up to `level` cover on the device; 0 before all of them. `busy` is int_busy_interval, or
-- a CTE of it.
CREATE OR REPLACE TEMP MACRO covered_at(points, busy) AS TABLE
    SELECT
        point.*,
        coalesce(
            busy_interval.covered_ns + least(point.at_ns, busy_interval.end_ns) - busy_interval.start_ns, 0
        ) AS covered_ns
    FROM query_table(points) AS point
    ASOF LEFT JOIN query_table(busy) AS busy_interval
        ON
            point.trace_id = busy_interval.trace_id
            AND point.device = busy_interval.device
            AND point.level = busy_interval.level
            AND point.at_ns >= busy_interval.start_ns;

-- The key of a step of the engine: matched steps of several ranks share one, an unmatched step has its own.
-- Steps are numbered per device, so equal numbers on two devices of a trace do not make them one step.
CREATE OR REPLACE TEMP MACRO step_unit(match_id, trace_id, device, step) AS
coalesce(match_id::varchar, trace_id || ' ' || device || ' ' || step);
