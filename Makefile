# Every target does all of its own set-up: a virtual environment with the pinned dependencies.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint docs clean

$(STAMP): pyproject.toml papers/pyproject.toml bench/pyproject.toml constraints.txt setup.py $(wildcard src/coset/assignment/kernel/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]' -e papers -e bench
	touch $@

demo: $(STAMP)
	$(BIN)/coset demo

lint: $(STAMP)
	$(BIN)/ruff check src tests bench tools papers
	$(BIN)/ruff format --check src tests bench tools papers
	$(BIN)/mypy

# Two processes, each with whole files, which share what they have traced.
test: lint
	$(BIN)/pytest -n 2 --dist loadfile

test-all: lint
	$(BIN)/pytest -n 2 --dist loadfile -m ''

docs: $(STAMP)
	$(BIN)/python -m tools.docs docs results papers/results

clean:
	rm -rf $(VENV) build dist src/*.egg-info papers/src/*.egg-info bench/*.egg-info
