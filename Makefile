# Everything runs inside .venv, which `install` makes; a second run re-installs nothing unless pyproject.toml changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# In two processes, each with one thread: on two cores that is faster than one process with two threads.
IN_TWO := -n 2 --dist=worksteal

.PHONY: install test coverage test-fast test-faults test-oldest release-check mutants lint types demo bench bench-full docs clean

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

test: lint types
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest $(IN_TWO)

# Which lines no test reaches. Tracking them makes most tests take half as long again, so `make test` does not.
coverage: install
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest $(IN_TWO) --cov --cov-report=term

# Everything but the tests that are marked slow: for the minutes between two changes.
test-fast: install
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest $(IN_TWO) -m "not slow"

# Training runs are killed at all moments of the campaign, not at a few; it takes minutes and writes tests/faults/results.md.
test-faults: install
	TM_BANDIT_FAULTS=all OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n 0 tests/faults

# The core is broken in more than a hundred places, one after another, and tests must notice each; writes tests/mutants/results.md.
mutants: install
	$(BIN)/python -m tests.mutants

# The oldest versions that pyproject.toml names, in a separate environment: 5 GB, and as long as `make test`.
test-oldest:
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	$(PYTHON) -m tests.oldest > .venv-oldest/constraints.txt
	.venv-oldest/bin/python -m pip install --quiet --upgrade pip
	.venv-oldest/bin/python -m pip install --quiet --constraint .venv-oldest/constraints.txt --editable ".[test,demo]"
	OMP_NUM_THREADS=1 MPLBACKEND=Agg .venv-oldest/bin/python -m pytest $(IN_TWO) -W default

# A release without publishing: builds sdist and wheel, installs the wheel in a new environment and tests it.
release-check: install
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m tests.release

demo: install
	$(BIN)/python -m tm_bandit demo

# The docs site with the gallery, whose fast examples run; a warning is an error. `python docs/figures.py` draws its figures.
docs: install
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: install
	$(BIN)/python -m benchmarks

bench-full: install
	$(BIN)/python -m benchmarks --full

clean:
	rm -rf $(VENV) .venv-oldest build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage .coverage.* .hypothesis docs/_build docs/gallery
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
