"""Secrets: a report holds the environment and command lines of every process; none of that reaches the
warehouse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest

from pipeline.cli.app import app
from pipeline.ingest.ingest import drain
from pipeline.lake.home import Home
from pipeline.progress import Progress
from tests.support.homes import settled
from tests.support.nsys_builders import (
    Process,
    Table,
    Tables,
    Version,
    columns_of,
    tables_of,
    two_ranks,
    write,
)

SECRET = "hunter2-AKIA0SECRET"  # noqa: S105 (the one that must not be found)


def _plant(tables: Tables) -> Tables:
    """Put the secret wherever a report keeps the inputs and outputs of processes."""
    strings = tables["StringIds"].rows
    strings.append({"id": 900, "value": f"PATH=/bin\0API_KEY={SECRET}\0HOME=/root"})
    strings.append({"id": 901, "value": f"rank log {SECRET}"})
    strings.append({"id": 902, "value": f"thread of {SECRET}"})
    tables["PROCESSES"].rows.append({"globalPid": 77 << 24, "pid": 77, "name": f"/bin/other --key={SECRET}"})

    def add(table: str, ddl: str, /, **row: Any) -> None:
        tables.setdefault(table, Table(columns_of(ddl))).rows.append(row)

    add(
        "ThreadNames",
        "nameId! priority globalTid:u",
        nameId=902,
        globalTid=two_ranks().processes[0].global_tid(7),
    )
    add(
        "ProcessStreams",
        "globalPid!:u filenameId! contentId!",
        globalPid=77 << 24,
        filenameId=901,
        contentId=901,
    )
    add(
        "TARGET_INFO_SYSTEM_ENV",
        "globalVid:u devStateName!:t name!:t nameEnum! value!:t",
        devStateName="e",
        name="DeviceEnvironment",
        value=SECRET,
    )
    add(
        "META_DATA_CAPTURE",
        "name!:t value:t",
        name="PROCESS_0:ENVIRONMENT_VARIABLE",
        value=f"API_KEY={SECRET}",
    )
    add(
        "META_DATA_EXPORT",
        "name!:t value:t",
        name="EXPORT_PARAM_INPUT_FILE",
        value=f"/home/{SECRET}/report.nsys-rep",
    )
    add("EXPORT_META_DATA", "name!:t value:t", name="EXPORT_USER", value=SECRET)
    add(
        "DIAGNOSTIC_EVENT",
        "timestamp! severity! text!:t",
        timestamp=1,
        severity=3,
        text=f"could not run with {SECRET}",
    )
    tables["NVTX_EVENTS"].rows.append({"start": 1, "eventType": 34, "text": f"mark {SECRET}", "globalTid": 1})
    return tables


def _report(version: Version) -> Tables:
    processes = [
        Process(101, f"/opt/vllm/bin/worker --api-key {SECRET}"),
        Process(102, f"/opt/{SECRET}/python3"),
    ]
    return _plant(tables_of(two_ranks(processes=processes), version))


def _texts(path: Path) -> bytes:
    """Bytes of a file; of a Parquet file also all of its values, uncompressed, and its statistics."""
    data = path.read_bytes()
    if path.suffix == ".parquet":
        data += (
            str(pyarrow.parquet.ParquetFile(path).read().to_pydict()).encode()
            + str(pyarrow.parquet.read_metadata(path).to_dict()).encode()
        )
    return data


@pytest.mark.parametrize(("version", "form"), [("2022.4", "sqlite"), ("2024", "parquetdir")])
def test_no_secret_of_a_report_leaves_it(
    home: Home, capsysbinary: pytest.CaptureFixture[bytes], version: Version, form: str
) -> None:
    """A good report and three bad ones through the inbox, built and exported: outside the originals the
    secret is nowhere."""
    write(home.inbox, _report(version), form, "good")
    bad = _report(version)
    bad["CUPTI_ACTIVITY_KIND_KERNEL"].drop("start")
    write(home.inbox, bad, form, "lacking")
    odd = _report(version)
    odd["CUPTI_ACTIVITY_KIND_KERNEL"].rows[0]["deviceId"] = 1 << 40
    write(home.inbox, odd, form, "odd")
    torn = write(home.inbox, _report(version), form, "torn")
    for file in [torn] if torn.is_file() else sorted(torn.iterdir()):
        file.write_bytes(file.read_bytes()[:-300])
    for path in (*home.inbox.rglob("*"), *home.inbox.iterdir()):
        settled(path)
    outcome = drain(home, Progress())
    assert outcome.built == ["good"]
    assert len(list(home.reasons.iterdir())) == 3
    for mart in ("step_breakdown", "activity", "steps"):
        for kind in ("csv", "parquet"):
            target = str(home.root / f"{mart}.{kind}")
            app(
                ["--home", str(home.root), "export", "--mart", mart, "--format", kind, "--output", target],
                standalone_mode=False,
            )
    printed = capsysbinary.readouterr()
    assert SECRET.encode() not in printed.err + printed.out
    originals = [home.archive, home.quarantine]
    looked = 0
    for path in home.root.rglob("*"):
        if path.is_file() and not any(o in path.parents for o in originals):
            looked += 1
            assert SECRET.encode() not in _texts(path), path
    assert looked > 20
    with duckdb.connect(str(home.database), read_only=True) as con:
        assert con.sql("SELECT DISTINCT process_name FROM raw.trace ORDER BY ALL").fetchall() == [
            ("python3",),
            ("worker",),
        ]


def test_the_planted_secret_is_in_every_place(tmp_path: Path) -> None:
    """The test above looks for something that is there: each table that may hold secrets does."""
    tables = _report("2024")
    holders = {name for name, table in tables.items() if SECRET in str(table.rows)}
    assert holders == {
        "StringIds", "PROCESSES", "TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "META_DATA_EXPORT",
        "EXPORT_META_DATA", "DIAGNOSTIC_EVENT", "NVTX_EVENTS",
    }  # fmt: skip
    assert SECRET.encode() in write(tmp_path, tables).read_bytes()
