# Everything runs inside .venv, which `install` makes; a second run re-installs nothing unless pyproject.toml changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install test test-fast test-faults lint types demo bench bench-full docs clean

install: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[test,demo]"
	touch $(STAMP)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# The tests run in two processes, each with one thread: on two cores that is faster than one process with two threads.
test: lint types
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n 2 --dist=worksteal --cov --cov-report=term

# Everything but the tests that are marked slow: for the minutes between two changes.
test-fast: install
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n 2 --dist=worksteal -m "not slow"

# Trainings are killed at all moments of the campaign, not at a few; it takes minutes and writes tests/faults/results.md.
test-faults: install
	TM_BANDIT_FAULTS=all OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n 0 tests/faults

demo: install
	$(BIN)/python -m tm_bandit demo

# The API reference, from the docstrings; a warning is an error.
docs: install
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: install
	$(BIN)/python -m benchmarks

bench-full: install
	$(BIN)/python -m benchmarks --full

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage .coverage.* .hypothesis docs/_build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
