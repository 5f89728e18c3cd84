# Each target works alone on a fresh clone: it makes .venv in the checkout and installs what it needs.
#
#   make demo    plan, run and measure ResNet-50; print the table, write the picture
#   make test    the tests
#   make lab     JupyterLab, in the course's folder
#   make bench   the benchmarks
#   make lint    ruff and mypy
#   make docs    the site: course, guides, API reference; into site/
#   make notebooks   notebooks/*.ipynb from notebooks/text/*.md
#   make clean   remove .venv, caches and built files
#
# Choose the interpreter with PYTHON (3.11 or newer): make test PYTHON=python3.12

PYTHON ?= python3
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

# Compiled kernels are kept beside the environment, so that a second run starts warm.
export NUMBA_CACHE_DIR ?= $(CURDIR)/$(VENV)/numba-cache

# Two installations into one environment must not run at once.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: demo test lab bench lint docs notebooks clean

demo: $(VENV)/.ready-core
	$(BIN)/remat-lab demo

test: $(VENV)/.ready-test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lab: $(VENV)/.ready-core
	$(BIN)/jupyter lab notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

bench: $(VENV)/.ready-cp
	@set -e; for script in $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(BIN)/python $$script; \
	done

lint: $(VENV)/.ready-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.ready-docs
	$(BIN)/python docs/site/build.py

notebooks: $(VENV)/.ready-test $(VENV)/.ready-lint
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python notebooks/sync.py

clean:
	rm -rf $(VENV) build dist site artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# .ready-<set>: the environment holds the package with that extra ("core": none).
$(VENV)/.ready-core: $(VENV)/.ready-torch pyproject.toml constraints.txt
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.ready-%: $(VENV)/.ready-torch pyproject.toml constraints.txt
	$(INSTALL) --editable ".[$*]"
	@touch $@

# torch comes first and by its exact version, so that a CPU wheel that pip is told of (PIP_FIND_LINKS,
# PIP_EXTRA_INDEX_URL) is taken before another package asks for torch.
$(VENV)/.ready-torch: $(VENV)/.ready-venv constraints.txt
	@echo "Installing into $(VENV); the first time takes a few minutes."
	$(INSTALL) "$$(grep '^torch==' constraints.txt)"
	@touch $@

$(VENV)/.ready-venv:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	  "remat_lab needs Python 3.11 or newer, and $(PYTHON) is %d.%d; say which to use: make PYTHON=python3.11" \
	  % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	@touch $@
