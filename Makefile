# Every target sets itself up: only python3 (3.11 or newer, with venv) and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check lint bench bench-startup bench-scale fuzz soak docs lock clean

demo: $(READY)
	$(BIN)/stepledger --home "$${STEPLEDGER_HOME:-warehouse}" demo

test: $(READY)
	$(BIN)/pytest -n auto --dist loadfile

check: $(READY) lint
	$(BIN)/pytest -n auto --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/sqlfluff lint sql

bench: $(READY)
	$(BIN)/python -m tests.benchmarks.ingest

bench-startup: $(READY)
	$(BIN)/python -m tests.benchmarks.startup

bench-scale: $(READY)
	$(BIN)/python -m tests.benchmarks.scale

# The long ones: 50,000 broken files; a watcher for 10 minutes, the command killed, and made to fail, at 100 points, and 50 traces
# that arrive while others read.
fuzz: $(READY)
	$(BIN)/python -m tests.tools.fuzz.run --mutants 50000

soak: $(READY)
	$(BIN)/python -m tests.tools.soak --minutes 10
	$(BIN)/python -m tests.tools.crash --points 100
	$(BIN)/python -m tests.tools.faults --points 100
	STEPLEDGER_SOAK=1 $(BIN)/pytest -n auto --dist loadfile

docs: $(READY)
	$(BIN)/python -m tests.tools.docs

lock: $(READY)
	$(BIN)/pip-compile --quiet --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-options --no-header --no-annotate --generate-hashes --allow-unsafe --extra dev --output-file requirements.lock --upgrade pyproject.toml

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "stepledger needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) build dist
