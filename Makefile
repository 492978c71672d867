# `make demo` and `make test` start from nothing but Python 3.11+ with venv and pip.
# A stamp in the environment records each install; it is redone only when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test lint docs install-images install-test install-docs clean

help:
	@echo "make demo   install into $(VENV), run the demonstration"
	@echo "make test   install into $(VENV), lint, run the tests"
	@echo "make lint   ruff check, ruff format --check, mypy"
	@echo "make docs   install into $(VENV), build the documentation into outputs/site"
	@echo "make clean  remove $(VENV), caches and builds"

demo: install-images
	$(BIN)/python -m metricconv.experiments.demo

# One thread per process: two test processes with a thread pool each would fight over the cores. A process that has done
# its share takes from the other's, as some tests take a minute and most none.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# mkdocs-material prints the news of its successor unless it is told not to.
docs: install-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open outputs/site/index.html, or with a search: $(BIN)/python -m http.server --directory outputs/site"

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
$(VENV)/.test-installed: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing metricconv[test] into $(VENV): a few minutes the first time"
	@$(PIP_INSTALL) --editable ".[test]"
	@touch $@ $(VENV)/.images-installed $(VENV)/.docs-installed

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
