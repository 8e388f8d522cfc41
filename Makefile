# The one set of commands for people and for CI. Every target does the set-up it needs.

PYTHON ?= python3
WORKERS ?= 2
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
UNFINISHED := $(VENV)/.setup-unfinished

.DEFAULT_GOAL := help
.PHONY: help setup browser demo test test-slow check format bench clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## create .venv with everything pinned (quick when nothing changed)

# A set-up that was cut short leaves UNFINISHED behind, or a Python without pip: then .venv is made anew.
$(STAMP): pyproject.toml constraints.txt
	@rm -f $@
	@if [ -e $(UNFINISHED) ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make: Python 3.11 or newer is needed; set PYTHON=/path/to/python3" >&2; exit 1; }; \
	  rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); \
	fi
	@touch $(UNFINISHED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@mv $(UNFINISHED) $@ && touch $@

demo: $(STAMP)  ## plain decoding and Wager side by side on the pair that ships, in two minutes
	$(BIN)/wager demo

# The page's tests drive a real browser and are skipped where there is none; as root on Debian it is installed.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || [ -n "$$WAGER_CHROMIUM" ] || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    echo "installing Chromium for the page's tests" && apt-get update -qq >/dev/null && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
	  echo "make: no Chromium here: the tests of the page will be skipped"

test: $(STAMP) browser  ## run the tests (not the slow and gpu ones)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

# pytest's status 5 says that no test is marked slow, which is no failure.
test-slow: $(STAMP) browser  ## run the slow tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m 'slow and not gpu' $(PYTEST_ARGS) || [ $$? -eq 5 ]

check: $(STAMP)  ## formatting, lint and types
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

format: $(STAMP)  ## format the code and apply safe lint fixes
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

bench: $(STAMP)  ## measure what one decision costs
	$(BIN)/python -m bench.decision

clean:  ## remove .venv, caches and build output
	rm -rf $(VENV) out build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
