"""What `stepledger rules --check FILE` says of a file of rules or markers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.models.check_rules import check_rules

RULE = '[[rule]]\nid = "mine"\nname = "^nvjet_"\ncategory = "gemm"\n'
MARKER = "[[marker]]\nid = 'mine'\npattern = '^pass (\\d+)$'\nphase = 'decode'\n"


def _problems(tmp_path: Path, text: str | bytes) -> tuple[str, ...]:
    file = tmp_path / "any.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return check_rules(file).problems


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (RULE, "1 rule"),
        (RULE + 'example = "nvjet_sm90"\n', "1 rule"),
        (RULE + RULE.replace("mine", "other"), "2 rules"),
        (RULE + 'after = "norm"\nexample = "nvjet_sm90"\n', "1 rule"),
        (RULE + 'op = "^aten::mm$"\nexample = "nvjet_sm90"\nexample_op = "aten::mm"\n', "1 rule"),
        (MARKER + "example = 'pass 4'\n", "1 marker"),
        (MARKER + "[[scope]]\npattern = '^a$'\n[[draft]]\npattern = '^b$'\n", "1 marker, 1 scope, 1 draft"),
    ],
)
def test_a_good_file_is_one_line(tmp_path: Path, text: str, summary: str) -> None:
    """The tables show whether it holds rules or markers, whatever its name."""
    file = tmp_path / "any.toml"
    file.write_text(text)
    found = check_rules(file)
    assert (found.summary, found.problems) == (f"{file}: {summary}, no problems", ())


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    """Each with the line of its entry, its number and its id."""
    text = (
        '# my rules\n[[rule]]\nid = "a"\nname = "(?=x)"\ncategory = "gem"\n\n'
        '[[rule]]\nid = "b"\ncolour = "red"\ncategory = "gemm"\n'
    )
    starts = [problem.split(":")[0] for problem in _problems(tmp_path, text)]
    assert starts == ["line 2, rule 1 (a)"] * 2 + ["line 7, rule 2 (b)"] * 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (RULE + 'example = "gemm"\n', "rule mine: its example is claimed by no rule"),
        (
            RULE + 'example = "fused_a_gemm_kernel"\n',
            "rule mine: its example is claimed by rule fused_a_gemm",
        ),
        (
            RULE + 'example = "nvjet_1"\n' + RULE.replace("mine", "late") + 'example = "nvjet_2"\n',
            "rule late: its example is claimed by rule mine",
        ),
        (
            RULE + 'op = "^aten::mm$"\nexample = "nvjet_1"\n',
            "rule mine: its example is claimed by rule nvjet",
        ),
        (
            MARKER + "example = 'step[DECODE bs=1]'\n",
            "marker mine: its example is claimed by marker sglang_decode",
        ),
        (MARKER + "example = 'pass'\n", "marker mine: its example is claimed by no marker"),
    ],
)
def test_an_example_that_another_entry_claims_is_a_problem(tmp_path: Path, text: str, problem: str) -> None:
    """With the whole set in force: earlier entries of the file, and ours."""
    assert _problems(tmp_path, text) == (problem,)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds neither [[rule]] tables nor [[marker]], [[scope]], [[draft]] tables"),
        ("[[rules]]\nid = 'a'\n", "holds neither"),
        (RULE + MARKER, "holds [[rule]] tables (for kernel_rules.toml) and markers"),
        ("[[rule", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_a_file_of_no_kind_is_a_problem(tmp_path: Path, text: str | bytes, problem: str) -> None:
    """One message, without a traceback."""
    (found,) = _problems(tmp_path, text)
    assert found.startswith(problem)


def test_a_file_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    """The user mistyped its name."""
    (found,) = check_rules(tmp_path / "nothere.toml").problems
    assert found == "cannot be read: No such file or directory"


def test_a_header_inside_a_text_moves_no_line(tmp_path: Path) -> None:
    """Where headers and tables differ in number the entry is named without a line."""
    text = "[[rule]]\nid = 'a'\nname = 'x'\ncategory = 'gem'\nnote = '''\n[[rule]]\n'''\n"
    (found,) = _problems(tmp_path, text)
    assert found.startswith("rule 1 (a): category 'gem'")
