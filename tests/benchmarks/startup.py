"""`python -m tests.benchmarks.startup`: CPU seconds that commands take on the demo, beside what DuckDB alone
takes, as a Markdown table.

CPU seconds (user and system) of the whole process are the measure; each figure is the best of `--repeat`
runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile

from tests.support.paths import ROOT

LIMIT_S = 0.5
BARE = "python -c 'import duckdb'"
COMMANDS = {
    "show": ["show", "demo"],
    "query": ["query", "SELECT * FROM runs"],
    "export": ["export", "demo", "--output", "-"],
    "runs": ["runs"],
    "status": ["status"],
    "--version": ["--version"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """What one process took, its threads included. Ends the benchmark where the process fails."""
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments} failed with exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure and print; exit 1 where a command is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as home:
        stepledger = ["-m", "pipeline", "--home", home]
        cpu_seconds([*stepledger, "demo"])
        asked = {BARE: ["-c", "import duckdb"]} | {
            f"stepledger {name}": [*stepledger, *words] for name, words in COMMANDS.items()
        }
        found = {name: min(cpu_seconds(words) for _ in range(repeat)) for name, words in asked.items()}
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, best of {repeat}\n")
    print("| command | CPU s | times DuckDB alone |\n|---|---|---|")
    for name, seconds in found.items():
        print(f"| `{name}` | {seconds:.2f} | {seconds / found[BARE]:.1f} |")
    slow = [name for name, seconds in found.items() if seconds > LIMIT_S]
    if slow:
        raise SystemExit(f"\nover {LIMIT_S} s: {', '.join(slow)}")


if __name__ == "__main__":
    main()
