"""Every question's file is one documented SELECT, and Python only binds its parameters."""

from __future__ import annotations

import re

import pytest

from pipeline.analyses import sql
from pipeline.resources import resource

FOLDER = resource("sql") / "questions"
QUESTIONS = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.sql"))
ANALYSES = sorted((resource("sql").parent / "pipeline" / "analyses").rglob("*.py"))


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_header_names_grain_and_parameters(question: str) -> None:
    """The parameters of the header are those of the SQL."""
    text = sql.text(question)
    header = "\n".join(line for line in text.splitlines() if line.startswith("--"))
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    assert re.search(r"^-- grain: \S", header, re.MULTILINE)
    listed = re.search(r"^-- parameters: (.+)", header, re.MULTILINE)
    named = re.sub(r"\([^)]*\)", "", listed[1]) if listed else ""
    assert set(re.findall(r"\w+", named)) == set(re.findall(r"\$(\w+)", code))


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_is_asked(question: str) -> None:
    """No file is left over from an analysis that is gone."""
    assert any(f'"{question}"' in path.read_text(encoding="utf-8") for path in ANALYSES)


def test_no_sql_stands_in_python() -> None:
    """Analyses bind parameters of files; they paste no SQL together."""
    written = [
        path.name for path in ANALYSES if re.search(r"\bSELECT\b[^,]", path.read_text(encoding="utf-8"))
    ]
    assert written == ["sql.py"]  # its docstring speaks of SELECT
