# `make demo`, `make test` and `make test-all` start from nothing but Python 3.11+ with venv and pip.
# A stamp in the environment records each install; it is redone only when pyproject.toml or constraints.txt change.
PYTHON ?= python3
HOURS ?= 3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-all test-slow test-oldest fuzz lint docs dist install-images install-test install-docs clean

help:
	@echo "make demo         install into $(VENV), run the demonstration"
	@echo "make test         install into $(VENV), lint, run the first tier of the tests: all that are not marked slow"
	@echo "make test-all     make test, then the tests marked slow: interpreter sweeps, browser, several processes,"
	@echo "                  documentation, experiments end to end"
	@echo "make test-oldest  run the library's tests with the oldest supported torch, log in outputs/oldest.log"
	@echo "make fuzz         run random cases for HOURS=3 hours, log in outputs/fuzz.log"
	@echo "make lint         ruff check, ruff format --check, mypy"
	@echo "make docs         install into $(VENV), build the documentation into outputs/site"
	@echo "make dist         build and check the source distribution and the wheel in dist"
	@echo "make clean        remove $(VENV), caches and builds"

demo: install-images
	$(BIN)/python examples/denoise.py

# One thread per process, as two processes with a thread pool each would compete for the cores. Durations of tests vary
# from milliseconds to a minute: an idle process takes tests from the other's queue.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test: lint
	$(PYTEST)

# `make test test-all` runs the first tier once.
test-all: test test-slow

test-slow: install-test
	$(PYTEST) -m "slow and not gpu and not timing"

test-oldest:
	$(PYTHON) tests/oldest.py --log outputs/oldest.log

fuzz: install-test
	@mkdir -p outputs
	PYTHONPATH=tests $(BIN)/python -m fuzz --hours $(HOURS) --jobs 2 --log outputs/fuzz.log

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# mkdocs-material prints the news of its successor unless it is told not to.
docs: install-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open outputs/site/index.html, or with a search: $(BIN)/python -m http.server --directory outputs/site"

dist: install-test
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

install-images: $(VENV)/.images-installed
install-test: $(VENV)/.test-installed
install-docs: $(VENV)/.docs-installed

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.images-installed: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing metricconv[images] into $(VENV)"
	@$(PIP_INSTALL) --editable ".[images]"
	@touch $@

$(VENV)/.docs-installed: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing metricconv[docs] into $(VENV)"
	@$(PIP_INSTALL) --editable ".[docs]"
	@touch $@

# The test extra contains the two others: all stamps hold afterwards.
$(VENV)/.test-installed: pyproject.toml experiments/pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing metricconv[test] and experiments into $(VENV): a few minutes the first time"
	@$(PIP_INSTALL) --editable ".[test]" --editable ./experiments
	@touch $@ $(VENV)/.images-installed $(VENV)/.docs-installed

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests experiments -name __pycache__ -type d -prune -exec rm -rf {} +
