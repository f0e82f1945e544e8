# make demo, make test, make test-extras, make test-nightly. Each makes the virtual environment it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar on
EXTRAS := $(VENV)-extras
TORCH  ?= torch==2.13.0

# Programs that tests start share compiled modules, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=
# Threads of BLAS wait by spinning, on the cores that the other tests need.
export OPENBLAS_NUM_THREADS := 1

.PHONY: demo test test-extras test-nightly check docs web clean

demo: $(VENV)/.base  ## the whole loop against a simulated robot
	$(BIN)/instep demo

test: check  ## style, types, import contract, budgets, tests, examples
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-extras: $(EXTRAS)/.done  ## the tests that need optional libraries (torch, sbi, ray, ...), in their own environment
	$(EXTRAS)/bin/python -m pytest -n 2 --dist loadfile --extras -rs

test-nightly: $(VENV)/.dev  ## what takes minutes: every command of README, docs and help, hostile files of a new seed
	$(BIN)/python -m pytest -n 2 --dist worksteal --nightly -m nightly -rs

docs: $(VENV)/.docs  ## the documentation as a site in site/, without warnings
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

web: $(VENV)/.dev  ## build the web viewer again (an installation builds it too); needs the npm registry
	$(BIN)/python web/build.py --again

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --warnings
	$(BIN)/lint-imports
	$(BIN)/python web/build.py --types

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

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml
	@echo "Installing the tools of the documentation (once) ..."
	$(PIP) -e '.[docs]'
	@touch $@

# torch first: the version that is asked for, before a library asks for another one.
$(EXTRAS)/.done: pyproject.toml
	@test -x $(EXTRAS)/bin/python || $(MAKE) VENV=$(EXTRAS) $(EXTRAS)/bin/python
	@echo "Installing instep with all extras that need no GPU (once; some minutes) ..."
	$(EXTRAS)/bin/python -m pip install --disable-pip-version-check '$(TORCH)'
	$(EXTRAS)/bin/python -m pip install --disable-pip-version-check '$(TORCH)' -e '.[dev,all]'
	@touch $@

clean:
	rm -rf $(VENV) $(EXTRAS) runs site .pytest_cache .ruff_cache
