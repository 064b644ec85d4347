-- Shared expressions of the models.

-- A kernel name in Kineto's spelling, from Kineto's or from nsys's: casts and suffixes of template numbers left out
-- (`(int)4`, `4ul`), `(bool)1` as true, `[lambda() (instance 1)]` as `{lambda()#1}`, `const T *` as `T const*`, no blanks
-- between closing brackets, template arguments that are functions without return type and parameters.
CREATE OR REPLACE MACRO one_spelling(name) AS
regexp_replace(
    regexp_replace(
        regexp_replace(
            regexp_replace(
                regexp_replace(
                    regexp_replace(
                        regexp_replace(
                            replace(
                                replace(
                                    replace(replace(replace(name, '(bool)0', 'false'), '(bool)1', 'true'), 'operator ()', 'operator()'),
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

-- Kernel name without return type and parameter list, in one spelling: `void f<int>(int const*)` is `f<int>`, in Kineto's
-- traces and in nsys's reports. Only the last balanced parenthesis is a parameter list; those in template arguments stay.
CREATE OR REPLACE MACRO short_name(name) AS
regexp_replace(
    regexp_replace(one_spelling(name), '^(?:void |std::enable_if<.*>::type )', ''),
    '\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)(?: const)?$',
    ''
);

-- Milliseconds of a number of nanoseconds, to the nanosecond: rounded so that the order of summation never shows.
CREATE OR REPLACE MACRO ns_to_ms(ns) AS round(ns / 1e6, 6);

-- A share, rounded for the same reason; NULL instead of a division by zero.
CREATE OR REPLACE MACRO share_of(part, whole) AS round(part / nullif(whole, 0), 9);
