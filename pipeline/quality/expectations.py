"""Great Expectations over one run: it judges how many rows break each check and each contract.

The only module that imports great_expectations, which takes seconds; nothing but `check` imports it.
"""

from __future__ import annotations

import logging
import warnings
from importlib import import_module
from typing import Any

import duckdb

from pipeline.contracts import contracts
from pipeline.quality.checks import CheckError, Result
from pipeline.quality.violations import contract_result

SUITE = "stepledger"
_SEVERITIES = {"fail": "critical", "warn": "warning", "info": "info"}


def judge(con: duckdb.DuckDBPyConnection, checked: list[Result]) -> list[Result]:
    """Count what breaks the contracts of the marts, and judge these counts and those of the SQL checks.

    Returns the SQL results with one result per contract. Raises CheckError if an expectation itself fails to
    run, or disagrees with the counts: neither says anything about the data.
    """
    results = [*checked, *(contract_result(con, contract) for contract in contracts("marts").values())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # great_expectations and its dependencies warn about themselves
        judged = _validate(results)
    for result in results:
        if judged[result.check] != (result.is_passed or result.severity == "info"):
            raise CheckError(f"{result.check}: Great Expectations contradicts its {result.failing_rows} rows")
    return results


def _validate(results: list[Result]) -> dict[str, bool]:
    """Whether the expectation of each result is met, by check."""
    import great_expectations as gx
    import pyarrow as pa
    from great_expectations.data_context.types.base import ProgressBarsConfig

    gxe: Any = import_module("great_expectations.expectations")
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    context: Any = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("marts").add_dataframe_asset("counts")
    suite = gx.ExpectationSuite(name=SUITE, expectations=[expectation(gxe, one) for one in results])
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(
            name=SUITE,
            data=asset.add_batch_definition_whole_dataframe("all"),
            suite=context.suites.add(suite),
        )
    )
    checkpoint = context.checkpoints.add(gx.Checkpoint(name=SUITE, validation_definitions=[definition]))
    frame = pa.table({one.check: [one.failing_rows] for one in results}).to_pandas()
    found = next(iter(checkpoint.run(batch_parameters={"dataframe": frame}).run_results.values()))
    judged = {}
    for one in found.results:
        column = one.expectation_config.kwargs["column"]
        raised = one.exception_info or {}
        if raised.get("raised_exception") or any(
            isinstance(value, dict) and value.get("raised_exception") for value in raised.values()
        ):
            raise CheckError(f"the expectation of {column} cannot be run: {raised}")
        judged[column] = bool(one.success)
    return judged


def expectation(gxe: Any, result: Result) -> Any:
    """No row may break a check; one of severity info may find any number."""
    limit = {"min_value": 0} if result.severity == "info" else {"max_value": 0}
    texts = [f"{result.severity}: {result.means}", result.todo]
    return gxe.ExpectColumnValuesToBeBetween(
        column=result.check,
        severity=_SEVERITIES[result.severity],
        meta={"notes": {"format": "string", "content": texts}},
        **limit,
    )
