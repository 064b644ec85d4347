"""The generated parts of README.md: `python -m tests.tools.docs` (make docs) rewrites them, test_readme.py
holds them true."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile

from pipeline.contracts import contracts
from tests.support.paths import README


def part(text: str, name: str) -> str:
    """What stands between <!-- name --> and <!-- /name -->."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found is not None, name
    return found.group(1)


def with_part(text: str, name: str, content: str) -> str:
    """The text with that part replaced."""
    return text.replace(
        f"<!-- {name} -->\n{part(text, name)}<!-- /{name} -->", f"<!-- {name} -->\n{content}<!-- /{name} -->"
    )


def tables() -> str:
    """Every table's columns, from the contracts."""
    lines = []
    for layer in ("raw", "marts"):
        for table, contract in contracts(layer).items():
            name = f"raw.{table}" if layer == "raw" else table
            lines += [f"### `{name}`", "", contract.doc, "", "| column | type | meaning |", "|---|---|---|"]
            if layer == "raw":
                lines.append(
                    "| `run_id`, `file_id` | VARCHAR | the run and the file, from the lake's folders |"
                )
            for c in contract.columns:
                lines.append(
                    f"| `{c.name}` | {c.type}{'' if not c.null else ', may be NULL'} | "
                    f"{c.doc.replace('|', chr(92) + '|')} |"
                )
            lines.append("")
    lines += [
        "### `runs`",
        "",
        "`run_facts` with the `verdict` of the checks (`unchecked` until they exist).",
        "",
    ]
    return "\n".join(lines)


def demo() -> str:
    """What `stepledger demo` prints at 80 columns, up to where it says where things are."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pipeline", "--home", "warehouse", "demo"]
        environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(README.parent)}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
    shown = done.stdout.partition("\nper step, rank and category")[0]
    return "```text\n" + "\n".join(line.rstrip() for line in shown.splitlines()) + "\n```\n"


FACTS = (
    "--layers 61 --dense-layers 1 --hidden 7168 --experts 64 --top-k 8 --shared-experts 1 --moe-intermediate "
    "2048 --intermediate 18432 "
    "--heads 64 --kv-lora-rank 512 --q-lora-rank 1536 --vocab 163840 --context-tokens 1040 --dtype bfloat16 "
    "--weight-dtype int4 --tp 2 --link nvlink4"
)
QUESTIONS = (
    ("audit demo", "How many all-reduces does a step hold, where, and how many should it?"),
    ("ranks demo", "How much of a collective is waiting, for whom, and what made that rank late?"),
    ("bandwidth demo", "What do the links and the memory do, beside what they could?"),
    ("bench demo --table nccl_latencies.csv", "Does the trace agree with the microbenchmark?"),
    ("whatif ep demo --mode dp_ep --table nccl_latencies.csv", "Would expert parallelism pay?"),
)


def questions() -> str:
    """What the commands that answer questions print of the demo, the first table of each, after its model was
    described."""
    lines = [f"After `stepledger describe demo {FACTS}`:", ""]
    environment = {**os.environ, "PYTHONPATH": str(README.parent)}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(README.parent / "pipeline" / "demo_traces" / "nccl_latencies.csv", folder)

        def call(*arguments: str) -> str:
            command = [sys.executable, "-m", "pipeline", "--home", "warehouse", *arguments]
            return subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=True
            ).stdout

        call("demo")
        call("describe", "demo", *FACTS.split())
        for command, question in QUESTIONS:
            first = call(*command.split(), "--format", "md").partition("\n### ")[0]
            lines += [f"**{question}** `stepledger {command}`", "", first.strip().replace("### ", "", 1), ""]
    return "\n".join(lines)


def main() -> None:
    """Rewrite the generated parts."""
    text = with_part(README.read_text(encoding="utf-8"), "tables", tables())
    text = with_part(text, "questions", questions())
    README.write_text(with_part(text, "demo", demo()), encoding="utf-8")


if __name__ == "__main__":
    main()
