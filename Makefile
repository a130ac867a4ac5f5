# Every target does all of its own set-up: a virtual environment with the pinned dependencies.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := -m pip install --quiet --disable-pip-version-check
CODE := src tests bench tools papers examples
SOURCES := pyproject.toml papers/pyproject.toml bench/pyproject.toml setup.py $(wildcard src/coset/assignment/kernel/*)
# Where torch comes from, if not from the usual index: https://download.pytorch.org/whl/cpu has builds without CUDA.
TORCH := torch $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))

.PHONY: demo test test-all test-oldest coverage lint docs clean

$(STAMP): $(SOURCES) constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) -c constraints.txt $(TORCH)
	$(BIN)/python $(PIP) -c constraints.txt -e '.[test,lint]' -e papers -e bench
	touch $@

demo: $(STAMP)
	$(BIN)/coset demo --overwrite

lint: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

# Two processes, each with whole files, which share what they have traced.
test: lint
	$(BIN)/pytest -n 2 --dist loadfile

test-all: lint
	$(BIN)/pytest -n 2 --dist loadfile -m ''

# With the lowest versions that pyproject.toml allows; builds of torch with CUDA take six gigabytes.
test-oldest: $(SOURCES) constraints-oldest.txt
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python $(PIP) -c constraints-oldest.txt $(TORCH)
	$(VENV)-oldest/bin/python $(PIP) -c constraints-oldest.txt -e '.[test]' -e papers -e bench
	$(VENV)-oldest/bin/pytest -n 2 --dist loadfile

coverage: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile --cov --cov-report=term --cov-report=html:build/coverage

docs: $(STAMP)
	$(BIN)/python -m tools.docs docs results papers/results

clean:
	rm -rf $(VENV) $(VENV)-oldest build dist src/*.egg-info papers/src/*.egg-info bench/*.egg-info
