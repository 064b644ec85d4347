"""The page of a run's check results: one self-contained file, with all foreign text escaped."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import orjson

from pipeline import __version__
from pipeline.lake.atomic import remove, write_file
from pipeline.quality.checks import Result
from pipeline.text import printable

_ORDER = ("fail", "warn", "info")
_FOUND = {"fail": "failed", "warn": "warning", "info": "note"}
_COLUMNS = ("Result", "Severity", "Check", "Wrong rows", "Meaning, what to do, sample")
_STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1b2430;--soft:#5b6776;--line:#d8dee6;--box:#f4f6f9;
--pass:#17702f;--fail:#b3211a;--warn:#8a5700;--info:#0b5cad}
@media (prefers-color-scheme:dark){:root{
--page:#12161c;--ink:#e4e9ef;--soft:#9aa7b6;--line:#313a46;--box:#1b212a;
--pass:#5cc77c;--fail:#ff8f85;--warn:#e5b454;--info:#7db7f5}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1.5rem 1rem 3rem;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .4rem;overflow-wrap:anywhere}
p{margin:.25rem 0}.soft{color:var(--soft)}
table{border-collapse:collapse;width:100%;margin-top:1.2rem}
th,td{padding:.5rem .7rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{background:var(--box);font-weight:600;white-space:nowrap}
td:nth-child(3){font-family:ui-monospace,monospace;font-size:.92em;overflow-wrap:anywhere;min-width:15rem}
td:nth-child(4){text-align:right;font-variant-numeric:tabular-nums}
.state{font-weight:700;white-space:nowrap}
.pass{color:var(--pass)}.fail{color:var(--fail)}.warn{color:var(--warn)}.info{color:var(--info)}
.sample{margin:.4rem 0 0;padding:.4rem .6rem;background:var(--box);border-radius:4px}
.sample{max-height:16rem;overflow:auto}
.sample code{display:block;font:.86em/1.45 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
@media (max-width:44rem){
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
table,tbody,tr,td{display:block;width:100%}
tr{border:1px solid var(--line);border-radius:6px;margin-bottom:.8rem;padding:.3rem 0}
td,td:nth-child(4){border:0;padding:.2rem .8rem;text-align:left}
td:nth-child(-n+4)::before{content:attr(data-label) ": ";color:var(--soft);font:14px system-ui,sans-serif}
}
"""
_DIGEST = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'"
"""A browser requests nothing for this page and applies no style but its own, no matter what text it
contains."""


class _Html(str):
    """Markup made by `_element`. Any other text is escaped where it enters markup."""

    __slots__ = ()


def _escaped(text: str) -> str:
    return text if isinstance(text, _Html) else escape(printable(text))


def _element(name: str, *inside: str, **attributes: str) -> _Html:
    """An element. Attributes are named as in HTML, with _ for -, and class_ for class."""
    names = {key: key.strip("_").replace("_", "-") for key in attributes}
    given = "".join(f' {names[key]}="{_escaped(value)}"' for key, value in attributes.items())
    return _Html(f"<{name}{given}>{''.join(map(_escaped, inside))}</{name}>")


def write_page(folder: Path, run_id: str, build_id: str, verdict: str, results: list[Result]) -> None:
    """Write index.html in one step; other files of an earlier version are removed from the folder."""
    write_file(folder / "index.html", _page(run_id, build_id, verdict, results).encode())
    for other in folder.iterdir():
        if other.name != "index.html":
            remove(other)


def _page(run_id: str, build_id: str, verdict: str, results: list[Result]) -> str:
    title = f"Quality of run {run_id}"
    passed = sum(r.is_passed for r in results)
    found = ", ".join(f"{sum(not r.is_passed and r.severity == s for r in results)} {s}" for s in _ORDER)
    ordered = sorted(results, key=lambda r: (r.is_passed, _ORDER.index(r.severity), r.check))
    head = _element("tr", *(_element("th", name, scope="col") for name in _COLUMNS))
    body = _element(
        "body",
        _element("h1", title),
        _element("p", "Verdict: ", _element("span", verdict, class_=f"state {verdict}")),
        _element("p", f"{passed} of {len(results)} checks pass. Found by severity: {found}."),
        _element(
            "p",
            f"Build {build_id}, checked {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by stepledger {__version__}. "
            "fail: the numbers are wrong; warn: read them with care; info: good to know.",
            class_="soft",
        ),
        _element("table", _element("thead", head), _element("tbody", *map(_row, ordered))),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"{_element('title', title)}<style>{_STYLE}</style></head>{body}</html>\n"
    )


def _row(result: Result) -> _Html:
    state, shown = ("passed", "pass") if result.is_passed else (_FOUND[result.severity], result.severity)
    if result.is_passed:
        what = [_element("p", "If it fails: ", result.means, " ", result.todo, class_="soft")]
    else:
        what = [_element("p", result.means), _element("p", _element("b", "What to do: "), result.todo)]
    if result.sample is not None:
        lines = (_element("code", line) for line in _lines(result.sample))
        what.append(_element("div", *lines, class_="sample"))
    found = _element("span", state, class_=f"state {shown}")
    cells = (found, result.severity, result.check, f"{result.failing_rows:,}")
    labeled = (_element("td", cell, data_label=label) for label, cell in zip(_COLUMNS, cells, strict=False))
    return _element("tr", *labeled, _element("td", *what))


def _lines(sample: str) -> list[str]:
    """The rows of a sample, one a line."""
    return [orjson.dumps(row).decode() for row in orjson.loads(sample)]
