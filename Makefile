# `make demo` and `make test` start from nothing but Python 3.11+ with venv and pip.
# A stamp in the environment records each install; it is redone only when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test lint install-images install-test clean

help:
	@echo "make demo   install into $(VENV), run the demonstration"
	@echo "make test   install into $(VENV), lint, run the tests"
	@echo "make lint   ruff check, ruff format --check, mypy"
	@echo "make clean  remove $(VENV), caches and builds"

demo: install-images
	$(BIN)/python -m metricconv.experiments.demo

# One thread per process: two test processes with a thread pool each would fight over the cores.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install-images: $(VENV)/.images-installed
install-test: $(VENV)/.test-installed

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.images-installed: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing metricconv[images] into $(VENV)"
	@$(PIP_INSTALL) --editable ".[images]"
	@touch $@

# The test extra contains the images extra: both stamps hold afterwards.
$(VENV)/.test-installed: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing metricconv[test] into $(VENV): a few minutes the first time"
	@$(PIP_INSTALL) --editable ".[test]"
	@touch $@ $(VENV)/.images-installed

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
