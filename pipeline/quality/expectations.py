"""Great Expectations over one run: the contracts of schemas/marts as suites, and the SQL checks as a frame.

The only module that imports great_expectations, which takes seconds; nothing but `check` (and `run`) imports
it.
"""

from __future__ import annotations

import logging
import warnings
from importlib import import_module
from typing import Any

import duckdb
import orjson

from pipeline.contracts import Column, Contract, contracts
from pipeline.models.rules import categories, rollups
from pipeline.quality.checks import SAMPLE_ROWS, CheckError, Result

_PANDAS = {"BIGINT": "int64", "INTEGER": "int32", "DOUBLE": "float64", "BOOLEAN": "bool"}
SQL_SUITE = "sql_checks"
_SEVERITIES = {"fail": "critical", "warn": "warning", "info": "info"}


def judge(con: duckdb.DuckDBPyConnection, checked: list[Result]) -> list[Result]:
    """Run the contract suites on the marts' frames and judge the SQL checks' counts.

    Returns the SQL results with one result per contract. Raises CheckError if an expectation itself fails to
    run: that says nothing about the data.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # great_expectations and its dependencies warn about themselves
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        gxe: Any = import_module("great_expectations.expectations")
        logging.getLogger("great_expectations").setLevel(logging.ERROR)
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        source = context.data_sources.add_pandas("stepledger")
        results = list(checked)
        for table, contract in contracts("marts").items():
            frame = con.sql(f"SELECT * FROM {table}").df()
            expected = [e for c in contract.columns for e in _of_column(gxe, c)] + _of_table(gxe, contract)
            results.append(_contract_result(table, _validate(gx, context, source, table, frame, expected)))
        counts = con.sql("SELECT " + ", ".join(f'{r.failing_rows} AS "{r.check}"' for r in checked)).df()
        _validate(gx, context, source, SQL_SUITE, counts, [_of_check(gxe, r) for r in checked])
    return results


def _validate(gx: Any, context: Any, source: Any, name: str, frame: Any, expectations: list[Any]) -> Any:
    batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
    suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=expectations))
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name=name, data=batch, suite=suite)
    )
    checkpoint = context.checkpoints.add(gx.Checkpoint(name=name, validation_definitions=[definition]))
    found = next(iter(checkpoint.run(batch_parameters={"dataframe": frame}).run_results.values()))
    for result in found.results:
        raised = result.exception_info or {}
        if raised.get("raised_exception") or any(
            isinstance(v, dict) and v.get("raised_exception") for v in raised.values()
        ):
            raise CheckError(
                f"expectation {result.expectation_config.type} on {name} cannot be run: {raised}"
            )
    return found


def _of_check(gxe: Any, check: Result) -> Any:
    """No row may be wrong; a check of severity info may find any number."""
    limit = {"min_value": 0} if check.severity == "info" else {"max_value": 0}
    notes = {"notes": {"format": "string", "content": [f"{check.severity}: {check.means}", check.todo]}}
    return gxe.ExpectColumnValuesToBeBetween(
        column=check.check, severity=_SEVERITIES[check.severity], meta=notes, **limit
    )


def _of_column(gxe: Any, column: Column) -> list[Any]:
    made: list[Any] = []
    if not column.null:
        made.append(gxe.ExpectColumnValuesToNotBeNull(column=column.name))
        if column.type in _PANDAS:
            made.append(gxe.ExpectColumnValuesToBeOfType(column=column.name, type_=_PANDAS[column.type]))
    if column.min is not None or column.max is not None:
        made.append(
            gxe.ExpectColumnValuesToBeBetween(column=column.name, min_value=column.min, max_value=column.max)
        )
    values = {"categories": tuple(categories()), "rollups": rollups()}.get(
        column.values_from or "", column.values
    )
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
            "columns": r.expectation_config.kwargs.get("column")
            or r.expectation_config.kwargs.get("column_list"),
            "unexpected": r.result.get("partial_unexpected_list", [])[:SAMPLE_ROWS]
            or r.result.get("observed_value"),
        }
        for r in broken[:SAMPLE_ROWS]
    ]
    return Result(
        check=f"contract.{table}",
        severity="fail",
        failing_rows=sum(int(r.result.get("unexpected_count") or 1) for r in broken),
        sample=orjson.dumps(sample, default=str, option=orjson.OPT_SERIALIZE_NUMPY).decode()
        if sample
        else None,
        means=(
            f"The mart {table} breaks its contract (schemas/marts/{table}.toml): types, NULLs, ranges, "
            "sets or its grain."
        ),
        todo="Rebuild the run; report it if it stays.",
    )
