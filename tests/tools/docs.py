"""The generated parts of the READMEs: `python -m tests.tools.docs` (make docs) rewrites them, and
tests/documents checks that they are current."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from pipeline.contracts import Layer, contracts
from pipeline.models.engine import Model, models
from pipeline.models.interconnects import interconnects
from pipeline.models.rules import categories
from pipeline.quality.checks import checks
from pipeline.sources.issues import issue_codes
from pipeline.thresholds import thresholds
from tests.support.paths import README, ROOT

_TABLES_OF: tuple[tuple[Layer, str], ...] = (("raw", "raw."), ("marts", ""), ("config", ""), ("quality", ""))
_OWNERS = {1: "compute", 2: "communication", 3: "copies"}
_HEADER = re.compile(r"^-- ?(.*)$")
_SENTENCE = re.compile(r"(?<![ .]\w\.)[.;](?=\s|$)")

FACTS = (
    "layers=61 dense_layers=1 hidden_size=7168 experts=64 experts_per_token=8 shared_experts=1 "
    "moe_intermediate_size=2048 intermediate_size=18432 heads=64 kv_lora_rank=512 q_lora_rank=1536 "
    "vocab_size=163840 context_tokens=1040 dtype=bfloat16 weight_dtype=int4 tp=2 link=nvlink4"
)
QUESTIONS = (
    ("audit demo", "How many all-reduces does a step hold, where, and how many should it?"),
    ("ranks demo", "How much of a collective is waiting, for which rank, and what made that rank late?"),
    ("bandwidth demo", "How fast are the links and the memory, compared with what they can do?"),
    ("bench demo --table nccl_latencies.csv", "Does the trace agree with the microbenchmark?"),
    ("whatif ep demo --mode dp_ep --table nccl_latencies.csv", "Would expert parallelism pay?"),
)


def part(text: str, name: str) -> str:
    """The text between <!-- name --> and <!-- /name -->."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found is not None, name
    return found.group(1)


def with_part(text: str, name: str, content: str) -> str:
    """The text with that part replaced."""
    return text.replace(
        f"<!-- {name} -->\n{part(text, name)}<!-- /{name} -->", f"<!-- {name} -->\n{content}<!-- /{name} -->"
    )


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _table(heads: tuple[str, ...], rows: list[tuple[object, ...]]) -> list[str]:
    return [_row(*heads), f"|{'---|' * len(heads)}", *(_row(*row) for row in rows)]


def tables() -> str:
    """The columns of every table, from the contracts."""
    lines = []
    for layer, prefix in _TABLES_OF:
        for table, contract in contracts(layer).items():
            lines += [
                f"### `{prefix}{table}`",
                "",
                contract.doc,
                "",
                "| column | type | meaning |",
                "|---|---|---|",
            ]
            if layer == "raw":
                lines.append(
                    _row("`run_id`, `file_id`", "VARCHAR", "the run and the file, from the lake's folders")
                )
            lines += [
                _row(f"`{c.name}`", f"{c.type}{', may be NULL' if c.null else ''}", c.doc)
                for c in contract.columns
            ]
            lines.append("")
    runs = "`run_facts` with the `verdict` of the checks (`unchecked` until the run has been checked)."
    return "\n".join([*lines, "### `runs`", "", runs, ""])


def rollup_rows() -> str:
    """Each category: its row in the table, and its priority when activities overlap."""
    rows: list[tuple[object, ...]] = [
        (f"`{name}`", entry["rollup"], _OWNERS[entry["owner"]]) for name, entry in categories().items()
    ]
    return "\n".join([*_table(("category", "rollup", "class"), rows), ""])


def issues() -> str:
    """Each issue that a reader counts: its code, severity, meaning and advice."""
    rows: list[tuple[object, ...]] = [
        (f"`{code}`", entry["severity"], entry["meaning"], entry["todo"])
        for code, entry in sorted(issue_codes().items())
    ]
    return "\n".join([*_table(("code", "severity", "meaning", "what to do"), rows), ""])


def threshold_rows() -> str:
    """Each threshold: its value, unit and meaning."""
    rows: list[tuple[object, ...]] = [
        (f"`{one.name}`", f"{one.value:,} {one.unit}", one.meaning) for one in thresholds().values()
    ]
    return "\n".join([*_table(("threshold", "value", "meaning"), rows), ""])


def link_rows() -> str:
    """Each link that `describe` accepts: its bandwidth and its source."""
    rows: list[tuple[object, ...]] = [
        (f"`{link.name}`", f"{link.gbps:g}", link.source) for link in interconnects().values()
    ]
    return "\n".join([*_table(("link", "GB/s", "source"), rows), ""])


def check_rows() -> str:
    """Each check: its severity, meaning and advice."""
    rows: list[tuple[object, ...]] = [
        (f"[`{check.name}`](checks/{check.name}.sql)", check.severity, check.means, check.todo)
        for check in checks()
    ]
    return "\n".join([*_table(("check", "severity", "a hit means", "what to do"), rows), ""])


def _header(model: Model) -> tuple[str, str]:
    """The first sentence of a model's header, and its grain."""
    lines = []
    for line in model.sql.splitlines():
        if (found := _HEADER.match(line)) is None:
            break
        lines.append(found.group(1))
    text = " ".join(line for line in lines if not line.startswith("grain:"))
    grain = next((line.removeprefix("grain: ") for line in lines if line.startswith("grain:")), "")
    return _SENTENCE.split(text, maxsplit=1)[0].strip(), grain


def model_graph() -> str:
    """The models of each folder, in the order in which data passes them: what a row is, its grain, and what
    the model reads."""
    by_folder: dict[str, list[Model]] = {}
    for model in models():
        by_folder.setdefault(Path(model.place).parent.as_posix(), []).append(model)
    lines = []
    for folder in sorted(by_folder, key=_order_of_layers):
        rows: list[tuple[object, ...]] = []
        for model in sorted(by_folder[folder], key=lambda m: m.name):
            what, grain = _header(model)
            link = f"[`{model.name}`]({Path(model.place).relative_to('sql').as_posix()})"
            rows.append((link, what, grain, ", ".join(f"`{need}`" for need in sorted(model.needs))))
        lines += [f"### {folder}", "", *_table(("model", "what", "grain", "reads"), rows), ""]
    return "\n".join(lines)


def _order_of_layers(folder: str) -> tuple[int, str]:
    layers = ("staging", "intermediate", "marts")
    return layers.index(Path(folder).parts[1]), folder


def _stepledger(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pipeline", "--home", "warehouse", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout


@cache
def _demo() -> tuple[tempfile.TemporaryDirectory[str], str]:
    """A folder with a home of the demo traces and the latency table, and the output of `stepledger demo`."""
    folder = tempfile.TemporaryDirectory(prefix="stepledger-docs-")
    shutil.copy(ROOT / "pipeline" / "ingest" / "demo_traces" / "nccl_latencies.csv", folder.name)
    return folder, _stepledger(Path(folder.name), "demo")


def demo_folder() -> Path:
    """A folder whose `warehouse` is a home of the demo traces; it is removed when the process ends."""
    return Path(_demo()[0].name)


def demo() -> str:
    """The output of `stepledger demo` at 80 columns, up to the paths it names."""
    shown = _demo()[1].partition("\nper step, rank and category")[0]
    return "```text\n" + "\n".join(line.rstrip() for line in shown.splitlines()) + "\n```\n"


def questions() -> str:
    """The first table of each question about the demo run, once its model has been described."""
    lines = [f"After `stepledger describe demo {FACTS}`:", ""]
    folder = demo_folder()
    _stepledger(folder, "describe", "demo", *FACTS.split())
    for command, question in QUESTIONS:
        first = _stepledger(folder, *command.split(), "--format", "md").partition("\n### ")[0]
        lines += [f"**{question}** `stepledger {command}`", "", first.strip().replace("### ", "", 1), ""]
    return "\n".join(lines)


PARTS: dict[tuple[Path, str], Callable[[], str]] = {
    (README, "demo"): demo,
    (ROOT / "schemas" / "README.md", "categories"): rollup_rows,
    (ROOT / "schemas" / "README.md", "tables"): tables,
    (ROOT / "schemas" / "README.md", "issues"): issues,
    (ROOT / "schemas" / "README.md", "thresholds"): threshold_rows,
    (ROOT / "schemas" / "README.md", "links"): link_rows,
    (ROOT / "sql" / "README.md", "models"): model_graph,
    (ROOT / "sql" / "README.md", "checks"): check_rows,
    (ROOT / "pipeline" / "analyses" / "README.md", "questions"): questions,
}
"""Each generated part: its page, its name there, and what makes it."""


def main() -> None:
    """Rewrite the generated parts."""
    for (page, name), made in PARTS.items():
        page.write_text(with_part(page.read_text(encoding="utf-8"), name, made()), encoding="utf-8")


if __name__ == "__main__":
    main()
