"""Great Expectations over one run: the contracts of schemas/marts as suites, the SQL checks as a frame, and pages of both.

The only module that imports great_expectations, which takes seconds; nothing but `check` (and `run`) imports it.
"""

from __future__ import annotations

import logging
import re
import shutil
import warnings
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import orjson

from pipeline.checks import SAMPLE_ROWS, CheckError, Result
from pipeline.contracts import Column, Contract, contracts
from pipeline.errors import StepledgerError
from pipeline.rules import categories, rollups

_PANDAS = {"BIGINT": "int64", "INTEGER": "int32", "DOUBLE": "float64", "BOOLEAN": "bool"}
SQL_SUITE = "sql_checks"
_SEVERITIES = {"fail": "critical", "warn": "warning", "info": "info"}
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#1d2733;margin:2rem auto;max-width:80rem;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0}td,th{border:1px solid #d5dbe2;padding:.3rem .55rem;text-align:left;vertical-align:top}
th{background:#f2f5f8}h1,h2,h3,h4,h5{line-height:1.2;margin:.3rem 0;font-size:1rem}h1{font-size:1.5rem}
.badge,.alert,.card{border:1px solid #d5dbe2;border-radius:6px;padding:.15rem .4rem}.alert,.card{padding:.4rem .8rem;margin:.6rem 0}
nav,ol.breadcrumb{list-style:none;padding:0;margin:.2rem 0;height:auto!important}ul.nav{list-style:none;padding:0}
li.breadcrumb-item{display:inline;margin-right:.6rem}
.sticky .nav{columns:4;max-height:none!important}.sticky>.card:has(input),a[data-toggle=collapse],.card.collapse,
img,button,.modal,svg,.cooltip .top{display:none}
a{color:#0b5cad}pre,code{white-space:pre-wrap;overflow-wrap:anywhere}i.fa-check-circle::before{content:"\\2713"}i.fa-times::before{content:"\\2717"}
i[class*=fa-]{font-style:normal;font-weight:bold}i.fa-exclamation-triangle::before{content:"!"}
.text-success{color:#1a7f37}.text-danger{color:#b42318}.text-warning{color:#9a6700}
"""
_FETCHED = re.compile(r"""(?:\b(?:src|href|srcset|action|data|poster)\s*=|\burl\()\s*["']?\s*(?:https?:)?//""", re.IGNORECASE)
"""What a browser would fetch from elsewhere."""


def judge(con: duckdb.DuckDBPyConnection, asked: list[Result], folder: Path) -> list[Result]:
    """Run the contract suites on the marts' frames and judge the SQL checks' counts; write pages into `folder`.

    Returns the SQL results with one result per contract. Raises CheckError if an expectation itself fails to run: that is no
    statement about the data.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # great_expectations and its dependencies warn about themselves
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        gxe: Any = import_module("great_expectations.expectations")
        logging.getLogger("great_expectations").setLevel(logging.ERROR)
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        staged = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        try:
            context.add_data_docs_site(
                "quality",
                {
                    "class_name": "SiteBuilder",
                    "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
                    "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(staged)},
                },
            )
            source = context.data_sources.add_pandas("stepledger")
            results = list(asked)
            for table, contract in contracts("marts").items():
                frame = con.sql(f"SELECT * FROM {table}").df()
                expected = [e for c in contract.columns for e in _of_column(gxe, c)] + _of_table(gxe, contract)
                results.append(_contract_result(table, _validate(gx, context, source, table, frame, expected)))
            counts = con.sql("SELECT " + ", ".join(f'{r.failing_rows} AS "{r.check}"' for r in asked)).df()
            _validate(gx, context, source, SQL_SUITE, counts, [_of_check(gxe, r) for r in asked])
            context.build_data_docs()
            _make_self_contained(staged)
            _write_index(staged, folder.name, results)
            shutil.rmtree(folder, ignore_errors=True)
            staged.rename(folder)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return results


def _validate(gx: Any, context: Any, source: Any, name: str, frame: Any, expectations: list[Any]) -> Any:
    batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
    suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=expectations))
    definition = context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
    checkpoint = context.checkpoints.add(gx.Checkpoint(name=name, validation_definitions=[definition]))
    found = next(iter(checkpoint.run(batch_parameters={"dataframe": frame}).run_results.values()))
    for result in found.results:
        raised = result.exception_info or {}
        if raised.get("raised_exception") or any(isinstance(v, dict) and v.get("raised_exception") for v in raised.values()):
            raise CheckError(f"expectation {result.expectation_config.type} on {name} cannot be carried out: {raised}")
    return found


def _of_check(gxe: Any, asked: Result) -> Any:
    """No row may be wrong; what is for information may have any number of them."""
    limit = {"min_value": 0} if asked.severity == "info" else {"max_value": 0}
    notes = {"notes": {"format": "string", "content": [f"{asked.severity}: {asked.means}", asked.todo]}}
    return gxe.ExpectColumnValuesToBeBetween(column=asked.check, severity=_SEVERITIES[asked.severity], meta=notes, **limit)


def _of_column(gxe: Any, column: Column) -> list[Any]:
    made: list[Any] = []
    if not column.null:
        made.append(gxe.ExpectColumnValuesToNotBeNull(column=column.name))
        if column.type in _PANDAS:
            made.append(gxe.ExpectColumnValuesToBeOfType(column=column.name, type_=_PANDAS[column.type]))
    if column.min is not None or column.max is not None:
        made.append(gxe.ExpectColumnValuesToBeBetween(column=column.name, min_value=column.min, max_value=column.max))
    values = {"categories": tuple(categories()), "rollups": rollups()}.get(column.values_from or "", column.values)
    if values:
        made.append(gxe.ExpectColumnValuesToBeInSet(column=column.name, value_set=list(values)))
    return made


def _of_table(gxe: Any, contract: Contract) -> list[Any]:
    made = [gxe.ExpectTableColumnsToMatchOrderedList(column_list=[c.name for c in contract.columns])]
    grain = list(contract.grain)
    if len(grain) > 1:
        made.append(gxe.ExpectCompoundColumnsToBeUnique(column_list=grain, ignore_row_if="never"))
    elif grain:
        made.append(gxe.ExpectColumnValuesToBeUnique(column=grain[0]))
    return made


def _contract_result(table: str, found: Any) -> Result:
    broken = [r for r in found.results if not r.success]
    sample = [
        {
            "expectation": r.expectation_config.type,
            "columns": r.expectation_config.kwargs.get("column") or r.expectation_config.kwargs.get("column_list"),
            "unexpected": r.result.get("partial_unexpected_list", [])[:SAMPLE_ROWS] or r.result.get("observed_value"),
        }
        for r in broken[:SAMPLE_ROWS]
    ]
    return Result(
        check=f"contract.{table}",
        severity="fail",
        failing_rows=sum(int(r.result.get("unexpected_count") or 1) for r in broken),
        sample=orjson.dumps(sample, default=str, option=orjson.OPT_SERIALIZE_NUMPY).decode() if sample else None,
        means=f"The mart {table} breaks its contract (schemas/marts/{table}.toml): types, NULLs, ranges, sets or its grain.",
        todo="Rebuild the run; report it if it stays.",
    )


def _make_self_contained(folder: Path) -> None:
    """Take everything out of the pages that would be fetched from elsewhere, and give them a style of their own.

    Raises StepledgerError if a browser would still fetch something: pages must work without a network, and must not call home.
    """
    shutil.rmtree(folder / "static", ignore_errors=True)
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for element in ("script", "style", "footer"):
            text = re.sub(rf"<{element}\b.*?</{element}>", "", text, flags=re.DOTALL | re.IGNORECASE)
        text = re.sub(r"<(?:link|img)\b[^>]*>", "", text, flags=re.IGNORECASE)
        text = re.sub(r"<a\b[^>]*href=[\"']https?://[^\"']*[\"'][^>]*>(.*?)</a>", r"\1", text, flags=re.DOTALL | re.IGNORECASE)
        text = re.sub(r"@import[^;]*;", "", text)
        text = text.replace("</head>", f"<style>{_STYLE}</style></head>", 1)
        if _FETCHED.search(text):
            raise StepledgerError(f"{page.name}: an outside address remains in a quality page")
        page.write_text(_inert(text), encoding="utf-8")


def _inert(text: str) -> str:
    """Addresses in what is only read (a kernel's name, a message) look the same and are none."""
    return re.sub(r"//(?=[A-Za-z0-9.-]+\.[A-Za-z]{2,}|localhost)|(?<=http:)//|(?<=https:)//", "/&#47;", text)


def _write_index(folder: Path, run_id: str, results: list[Result]) -> None:
    """The entry page: every check, what failed first. (The index page of Great Expectations is empty without scripts.)"""
    pages = {page.parents[2].name: page.relative_to(folder).as_posix() for page in (folder / "validations").rglob("*.html")}
    order = list(_SEVERITIES)
    lines = []
    for r in sorted(results, key=lambda r: (r.is_passed, order.index(r.severity), r.check)):
        colour = "success" if r.is_passed else "danger" if r.severity == "fail" else "warning"
        suite = r.check.removeprefix("contract.") if r.check.startswith("contract.") else SQL_SUITE
        cells = [
            f'<span class="text-{colour}">{"passed" if r.is_passed else "failed"}</span>',
            r.severity,
            f'<a href="{quote(pages[suite])}">{escape(r.check)}</a>',
            str(r.failing_rows),
            escape(r.means) + ("" if r.is_passed else f"<br>{escape(r.todo)}") + (f"<br><code>{escape(r.sample)}</code>" if r.sample else ""),
        ]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    counted = ", ".join(f"{sum(not r.is_passed and r.severity == s for r in results)} {s}" for s in order)
    head = "".join(f"<th>{name}</th>" for name in ("result", "severity", "check", "wrong rows", "meaning, what to do, sample"))
    title = f"Quality of run {escape(run_id)}"
    text = (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>'
        f"<p>{sum(r.is_passed for r in results)} of {len(results)} checks passed; failed: {counted}.</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></body></html>\n"
    )
    (folder / "index.html").write_text(_inert(text), encoding="utf-8")
