"""The page of check results: everything is on it, every text is text, and a browser requests nothing."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import duck
from pipeline.contracts import contracts
from pipeline.duck import literal
from pipeline.lake.home import Home
from pipeline.quality.check_page import write_page
from pipeline.quality.checks import CheckError, Result, checks
from pipeline.quality.verdicts import check_run, docs_page
from tests.support.homes import copied

ATTACKS = [
    "<svg onload=alert(1)>",
    "src=//evil.example/x.js",
    "</code></div><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
]
PASSED = Result("steps_in_order", "fail", 0, None, "Steps overlap.", "Report it.")
SAMPLE = '[{"rank":0,"x":null},{"rank":1,"x":1.5}]'
WARNED = Result("clock_jump", "warn", 1234, SAMPLE, "A clock jumped.", "Record again.")
FAILED = Result("contract.steps", "fail", 2, json.dumps(ATTACKS), "It is broken.", "Rebuild the run.")


class Page(HTMLParser):
    """What a browser sees: elements with their attributes, the cells of each row, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.rows: list[list[str]] = []
        self.style = ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        self.elements.append((tag, tuple(attrs)))
        self._inside = tag
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        """Text between elements."""
        if self._inside == "style":
            self.style += data
        elif self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def written(folder: Path, *results: Result, verdict: str = "fail") -> str:
    """The page of some results."""
    write_page(folder, "r", "b1", verdict, list(results))
    return (folder / "index.html").read_text(encoding="utf-8")


def test_every_check_is_shown_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    """Result, severity, name, wrong rows, meaning, what to do and sample; what failed first."""
    page = Page(written(tmp_path, PASSED, WARNED, FAILED))
    assert [row[:4] for row in page.rows[1:]] == [
        ["failed", "fail", "contract.steps", "2"],
        ["warning", "warn", "clock_jump", "1,234"],
        ["passed", "fail", "steps_in_order", "0"],
    ]
    assert page.rows[2][4] == 'A clock jumped.What to do: Record again.{"rank":0,"x":null}{"rank":1,"x":1.5}'
    assert page.rows[3][4].strip() == "If it fails: Steps overlap. Report it."


def test_the_head_counts_checks_and_names_the_verdict(tmp_path: Path) -> None:
    """By severity."""
    text = re.sub(r"<[^>]+>", "", written(tmp_path, PASSED, WARNED, FAILED))
    assert "Verdict: fail" in text
    assert "1 of 3 checks pass. Found by severity: 1 fail, 1 warn, 0 info." in text
    assert "Build b1, checked " in text


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("field", ["check", "sample", "means", "todo"])
def test_markup_in_any_text_is_text(tmp_path: Path, field: str, attack: str) -> None:
    """The elements of the page are those of a harmless one, and the text is shown as it is."""

    def with_text(text: str) -> Page:
        values = {"check": "c", "means": "m", "todo": "t", "sample": "s"} | {field: text}
        sample = json.dumps([values["sample"]])
        result = Result(values["check"], "fail", 1, sample, values["means"], values["todo"])
        return Page(written(tmp_path, result))

    found, harmless = with_text(attack), with_text("harmless")
    assert found.elements == harmless.elements
    assert any((json.dumps(attack) if field == "sample" else attack) in cell for cell in found.rows[1])


@given(st.text(max_size=60))
def test_no_text_adds_an_element(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Whatever it is, a control character is not among what it shows."""
    folder = tmp_path_factory.mktemp("page")
    html = written(folder, Result(text, "fail", 1, json.dumps([text]), text, text))
    assert Page(html).elements == Page(written(folder, Result("x", "fail", 1, '["x"]', "x", "x"))).elements
    assert html.replace("\n", "").isprintable()


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    """No address in any attribute or style, no script; the policy forbids requests and foreign styles."""
    page = Page(written(tmp_path, PASSED, WARNED, FAILED))
    names = {name for _, attributes in page.elements for name, _ in attributes}
    assert names == {"charset", "class", "content", "data-label", "http-equiv", "lang", "name", "scope"}
    tags = {tag for tag, _ in page.elements}
    assert tags & {"script", "link", "img", "iframe", "form", "a", "object", "base"} == set()
    assert "url(" not in page.style
    assert "@import" not in page.style
    metas = [dict(given) for tag, given in page.elements if tag == "meta"]
    (policy,) = (meta["content"] for meta in metas if meta.get("http-equiv") == "Content-Security-Policy")
    digest = b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_the_page_suits_a_phone_and_a_dark_screen(tmp_path: Path) -> None:
    """It says so to the browser, and names each cell where columns have no room for a head."""
    page = Page(written(tmp_path, FAILED))
    viewport = (("name", "viewport"), ("content", "width=device-width, initial-scale=1"))
    assert ("meta", viewport) in page.elements
    assert "prefers-color-scheme:dark" in page.style
    labels = [dict(given).get("data-label") for tag, given in page.elements if tag == "td"]
    assert labels[:4] == ["Result", "Severity", "Check", "Wrong rows"]


def test_what_an_earlier_version_wrote_is_removed(tmp_path: Path) -> None:
    """Its pages would speak of another build."""
    (tmp_path / "validations" / "steps").mkdir(parents=True)
    (tmp_path / "validations" / "steps" / "x.html").write_text("old")
    (tmp_path / "index.html").write_text("old")
    assert "old" not in written(tmp_path, PASSED)
    assert [p.name for p in tmp_path.iterdir()] == ["index.html"]


def test_attacks_in_a_mart_are_shown_as_text_and_the_check_succeeds(built: Home, tmp_path: Path) -> None:
    """A value outside its set is in the sample of the contract's result."""
    home = copied(built, tmp_path / "home")
    mart = home.mart_run("a") / "kernel_breakdown.parquet"
    changed = "".join(f" WHEN {number} THEN {literal(attack)}" for number, attack in enumerate(ATTACKS))
    with duck.working(tmp_path / "spill", threads=1, memory_limit="1GB") as con:
        con.execute(f"CREATE TABLE before AS FROM read_parquet({literal(mart)}, hive_partitioning = false)")
        con.execute(
            f"COPY (SELECT * REPLACE (CASE row_number() OVER () - 1 {changed} ELSE category END AS category) "
            f"FROM before) TO {literal(mart)} (FORMAT parquet)"
        )
        assert duck.scalar(con, "SELECT count(*) FROM before") > len(ATTACKS)
    results = check_run(home, "a")
    page = Page(docs_page(home, "a").read_text(encoding="utf-8"))
    (row,) = (row for row in page.rows if row[2:3] == ["contract.kernel_breakdown"])
    assert row[:2] == ["failed", "fail"]
    assert len([attack for attack in ATTACKS if attack in row[4]]) >= 2
    assert not any(name.startswith("on") for _, given in page.elements for name, _ in given)
    assert sorted(row[2] for row in page.rows[1:]) == sorted([r.check for r in results])
    of_contracts = {f"contract.{table}" for table in contracts("marts")}
    assert {r.check for r in results} == {check.name for check in checks()} | of_contracts


def test_a_check_that_cannot_be_carried_out_leaves_the_earlier_page(
    built: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says nothing of the data."""

    def fail(*_rest: object) -> list[Result]:
        raise CheckError("cannot be run")

    home = copied(built, tmp_path / "home")
    docs_page(home, "a").parent.mkdir(parents=True)
    docs_page(home, "a").write_text("earlier")
    monkeypatch.setattr("pipeline.quality.expectations.judge", fail)
    with pytest.raises(CheckError):
        check_run(home, "a")
    assert docs_page(home, "a").read_text() == "earlier"
