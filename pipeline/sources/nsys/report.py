"""A report in nsys's own format: exported with the nsys on PATH, or refused with the command to run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from pipeline.errors import TraceError

_FORMS = (("parquetdir", "report_pqtdir"), ("arrowdir", "report_arwdir"), ("sqlite", "report.sqlite"))
"""Newest first: folders since 2023.4, sqlite always."""


def exports_of(report: Path) -> list[Path]:
    """Exports beside a report, under the names that nsys gives them."""
    names = (f"{report.stem}.sqlite", f"{report.stem}_pqtdir", f"{report.stem}_arwdir")
    return [path for name in names if (path := report.with_name(name)).exists()]


def report_beside(export: Path) -> Path | None:
    """The report that an export was made from, by its name, if it is there."""
    name = export.name
    for ending in (".sqlite", "_pqtdir", "_arwdir"):
        if (
            name.endswith(ending)
            and (report := export.with_name(f"{name.removesuffix(ending)}.nsys-rep")).is_file()
        ):
            return report
    return None


def export_report(report: Path, work: Path) -> Path:
    """Export a .nsys-rep with the nsys on PATH, to Parquet if it can. Raises TraceError with the command."""
    nsys = shutil.which("nsys")
    command = f"nsys export --type=sqlite --force-overwrite=true {report.name}"
    if nsys is None:
        raise TraceError(
            report.name,
            where="the file",
            found="a report in nsys's own format, and no nsys on PATH",
            wanted="an export of it",
            advice=(
                f"Run `{command}` where nsys is installed, and drop the .sqlite in the inbox (a newer nsys "
                "reads older reports, not the reverse)."
            ),
        )
    error = ""
    for form, name in _FORMS:
        target = work / name
        error = _run(
            [
                nsys,
                "export",
                f"--type={form}",
                "--force-overwrite=true",
                f"--output={target}",
                str(report.resolve()),
            ]
        )
        if not error and (
            any(target.glob("*")) if target.is_dir() else target.is_file() and target.stat().st_size
        ):
            return target
        error = error or "nothing written, and no error"
    raise TraceError(
        report.name,
        where="nsys export",
        found=f"a failure: {error}",
        wanted="an export of the report",
        advice=f"Try `{command}` by hand with the nsys version that recorded it, or a newer one.",
    )


def _run(command: list[str]) -> str:
    """The last line of a failed command's output; "" if it succeeded."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603 (the report's own tool)
    except OSError as error:
        return error.strerror or str(error)
    if done.returncode == 0:
        return ""
    return ((done.stderr or done.stdout).strip() or f"exit code {done.returncode}").splitlines()[-1][:200]
