# Two commands do everything: make demo, make test. Each makes the virtual environment it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar on

.PHONY: demo test check clean

demo: $(VENV)/.base  ## the whole loop against a stand-in robot
	$(BIN)/instep demo

test: check  ## style, types, house rules, tests, examples
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --warnings
	$(BIN)/lint-imports

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "instep needs Python 3.11 or newer; name it with: make PYTHON=python3.12"; exit 2; }
	@echo "Making a virtual environment in $(VENV) ..."
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(VENV)/bin/python pyproject.toml
	@echo "Installing instep (once; about a minute) ..."
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	@echo "Installing instep and its test tools (once; a few minutes) ..."
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.base

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache
