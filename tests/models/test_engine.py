"""The engine of the models: order, layers, contracts and the hash of what built a mart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.contracts import contracts
from pipeline.errors import ContractError, ExitCode, ModelError
from pipeline.models import engine, macros
from pipeline.models.engine import Model, build_marts, models, models_sha
from tests.support.builders import GEMM, StepBuilder, read_raw, write_trace
from tests.support.tables import few_rules

WriteModels = Callable[..., None]


@pytest.fixture
def write_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteModels]:
    """Replace our SQL by files given as `layer/name` to text."""

    def write(**files: str) -> None:
        for place, sql in files.items():
            path = tmp_path / "sql" / f"{place.replace('__', '/')}.sql"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(sql, encoding="utf-8")
        models.cache_clear()
        models_sha.cache_clear()

    for module in (engine, macros):
        monkeypatch.setattr(module, "resource", lambda name: tmp_path / name)
    (tmp_path / "sql").mkdir()
    write(macros="")
    yield write
    monkeypatch.undo()
    models.cache_clear()
    models_sha.cache_clear()


def test_every_model_comes_after_what_it_reads() -> None:
    """The order of the build is one in which each model finds its inputs."""
    done: set[str] = set()
    for model in models():
        assert model.needs <= done, model.name
        done.add(model.name)


def test_every_contract_of_a_mart_has_its_model() -> None:
    """The files of sql/marts and of schemas/marts are the same tables."""
    assert {m.name for m in models() if m.layer == "marts"} == contracts("marts").keys()


def test_every_model_says_what_it_is_and_its_grain() -> None:
    """A SQL file begins with a comment that ends with the grain."""
    for model in models():
        header = [line for line in model.sql.splitlines() if line.startswith("--")]
        assert model.sql.startswith("-- "), model.name
        assert any(line.startswith("-- grain: ") for line in header), model.name


def test_dependencies_are_read_from_the_sql(write_models: WriteModels) -> None:
    """FROM and JOIN name them; the name of a CTE and words of a comment do not."""
    write_models(
        staging__stg_a="SELECT 1 AS x",
        staging__stg_b="SELECT 1 AS x",
        intermediate__int_a="-- FROM stg_b\nWITH int_b AS (SELECT * FROM stg_a) SELECT * FROM int_b",
        intermediate__int_b="SELECT * FROM raw.trace INNER JOIN stg_b USING (x)",
        marts__mart="SELECT * FROM int_a LEFT JOIN int_b USING (x)",
    )
    needs = {m.name: m.needs for m in models()}
    assert needs == {
        "stg_a": set(),
        "stg_b": set(),
        "int_a": {"stg_a"},
        "int_b": {"stg_b"},
        "mart": {"int_a", "int_b"},
    }


def test_a_circle_is_reported(write_models: WriteModels) -> None:
    """Models that need each other cannot be built, and are named."""
    write_models(marts__one="SELECT * FROM two", marts__two="SELECT * FROM one")
    with pytest.raises(ModelError, match=r"in a circle: .*one.*two|in a circle: .*two.*one"):
        models()


def test_a_model_does_not_read_from_a_later_layer(write_models: WriteModels) -> None:
    """Staging reads no mart: data moves one way."""
    write_models(staging__stg_a="SELECT * FROM mart", marts__mart="SELECT 1 AS x")
    with pytest.raises(ModelError, match=r"sql/staging/stg_a\.sql reads mart, which is in a later layer"):
        models()


def test_the_hash_changes_with_a_model_and_with_a_macro(write_models: WriteModels) -> None:
    """Marts say which SQL built them, so that an edit makes them stale."""
    write_models(marts__mart="SELECT 1 AS x")
    seen = {models_sha()}
    write_models(marts__mart="SELECT 2 AS x")
    seen.add(models_sha())
    write_models(macros="CREATE MACRO two() AS 2")
    seen.add(models_sha())
    write_models(macros="")
    assert (len(seen), models_sha() in seen) == (3, True)


@pytest.fixture(scope="module")
def raw_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The landed tables of one small trace."""
    folder = tmp_path_factory.mktemp("raw")
    return read_raw(
        write_trace(folder / "r0.json", StepBuilder().step([(GEMM, 100)]).step([(GEMM, 100)]).events), folder
    )


def _build(raw_run: Path, out: Path) -> None:
    out.mkdir(parents=True)
    build_marts(
        raw_run,
        "run",
        out,
        few_rules(),
        "build",
        "inputs",
        spill=out / "spill",
        threads=1,
        memory_limit="500MB",
    )


def _with(name: str, sql: str) -> Callable[[], tuple[Model, ...]]:
    changed = tuple(replace(m, sql=sql) if m.name == name else m for m in models())
    return lambda: changed


def test_a_build_writes_every_mart_as_its_contract_says(raw_run: Path, tmp_path: Path) -> None:
    """One Parquet file per contract, and no other."""
    _build(raw_run, tmp_path / "marts")
    assert {p.stem for p in (tmp_path / "marts").glob("*.parquet")} == contracts("marts").keys()


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            "SELECT * EXCLUDE (idle_ns) FROM ({sql})",
            ModelError,
            r"marts\.timeline is not what schemas/marts/timeline\.toml says: .*idle_ns",
        ),
        (
            "SELECT * REPLACE ('much' AS idle_ns) FROM ({sql})",
            ModelError,
            r"marts\.timeline is not what schemas/marts/timeline\.toml says: .*much",
        ),
        (
            "SELECT * REPLACE (NULL AS idle_ns) FROM ({sql})",
            ContractError,
            r"marts\.timeline: NULL in columns that are never NULL: {'idle_ns': 1}",
        ),
        (
            "FROM ({sql}) UNION ALL FROM ({sql})",
            ContractError,
            r'marts\.timeline: "trace_id", "device" is not unique',
        ),
        ("SELECT * FROM nowhere", ModelError, r"sql/marts/timeline\.sql: .*nowhere"),
    ],
    ids=["a column missing", "a value of another type", "a NULL", "a key repeated", "SQL that fails"],
)
def test_a_result_that_breaks_its_contract_names_its_table(
    raw_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: str,
    error: type[ModelError],
    message: str,
) -> None:
    """The build fails with the exit code for models, and no mart appears."""
    sql = next(m.sql for m in models() if m.name == "timeline")
    monkeypatch.setattr(engine, "models", _with("timeline", wrong.replace("{sql}", f"{sql}\n")))
    with pytest.raises(error, match=message) as raised:
        _build(raw_run, tmp_path / "marts")
    assert raised.value.exit_code is ExitCode.MODEL
