-- Shared expressions of the models.

-- Kernel name without return type and parameter list: `void f<int>(int const*)` is `f<int>`, in Kineto's spelling and in
-- nsys's. Only the last balanced parenthesis is a parameter list; those inside template arguments stay.
CREATE OR REPLACE MACRO short_name(name) AS
regexp_replace(
    regexp_replace(name, '^(?:void |std::enable_if<.*>::type )', ''),
    '\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)(?: const)?$',
    ''
);

-- Milliseconds of a number of nanoseconds, to the nanosecond: rounded so that the order of summation never shows.
CREATE OR REPLACE MACRO ns_to_ms(ns) AS round(ns / 1e6, 6);

-- A share, rounded for the same reason; NULL instead of a division by zero.
CREATE OR REPLACE MACRO share_of(part, whole) AS round(part / nullif(whole, 0), 9);
