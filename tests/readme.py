"""The generated parts of README.md: `python -m tests.readme` (make docs) rewrites them, test_readme.py holds them true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pipeline.contracts import contracts

README = Path(__file__).resolve().parents[1] / "README.md"


def part(text: str, name: str) -> str:
    """What stands between <!-- name --> and <!-- /name -->."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found is not None, name
    return found.group(1)


def with_part(text: str, name: str, content: str) -> str:
    """The text with that part replaced."""
    return text.replace(f"<!-- {name} -->\n{part(text, name)}<!-- /{name} -->", f"<!-- {name} -->\n{content}<!-- /{name} -->")


def tables() -> str:
    """Every table's columns, from the contracts."""
    lines = []
    for layer in ("raw", "marts"):
        for table, contract in contracts(layer).items():
            name = f"raw.{table}" if layer == "raw" else table
            lines += [f"### `{name}`", "", contract.doc, "", "| column | type | meaning |", "|---|---|---|"]
            if layer == "raw":
                lines.append("| `run_id`, `file_id` | VARCHAR | the run and the file, from the lake's folders |")
            for c in contract.columns:
                lines.append(f"| `{c.name}` | {c.type}{'' if not c.null else ', may be NULL'} | {c.doc.replace('|', chr(92) + '|')} |")
            lines.append("")
    lines += ["### `runs`", "", "`run_facts` with the `verdict` of the checks (`unchecked` until they exist).", ""]
    return "\n".join(lines)


def demo() -> str:
    """What `stepledger demo` prints at 80 columns, up to where it says where things are."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pipeline", "--home", "warehouse", "demo"]
        environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(README.parent)}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    shown = done.stdout.partition("\nper step, rank and category")[0]
    return "```text\n" + "\n".join(line.rstrip() for line in shown.splitlines()) + "\n```\n"


def main() -> None:
    """Rewrite the generated parts."""
    text = with_part(README.read_text(encoding="utf-8"), "tables", tables())
    README.write_text(with_part(text, "demo", demo()), encoding="utf-8")


if __name__ == "__main__":
    main()
