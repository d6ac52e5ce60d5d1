# Each target makes .venv by itself: the first use installs the pinned requirements, and a change of pins remakes it.
#   make demo   make test   make test-slow   make lint   make format   make bench   make docs   make pins
# ARGS is passed on: `make test ARGS=tests/domain`, `make demo ARGS="--model openai/NAME"`.
# WORKERS=0 runs the tests in one process, as a debugger needs it.
# PYTHON names the interpreter when the first fitting one on PATH is not the one you want.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
# Processes that share the tests; most tests wait for other processes most of the time.
WORKERS := 3
PINNED := --require-hashes --quiet --disable-pip-version-check --no-input
PIP := $(BIN)/python -m pip install $(PINNED)

# Python 3.11 to 3.13 are what the tests run on; a newer one is taken only when none of them is there.
PYTHON = $(shell for name in python3 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& { echo "$$name"; exit; }; done; \
	python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo python3)

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: demo test test-slow lint format bench docs pins venv clean

demo: $(VENV)/package
	$(BIN)/hubctl demo $(ARGS)

test: $(VENV)/package $(VENV)/tests
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-slow: $(VENV)/package $(VENV)/tests
	$(BIN)/python -m pytest -n $(WORKERS) -m "slow or not slow" --timeout=3600 $(ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m hub.protocol.docs --check

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The quick set: every benchmark with its default counts. One that fails does not hide the others.
bench: $(VENV)/package $(VENV)/tests
	@status=0; for file in benchmarks/bench_*.py; do \
		[ -e "$$file" ] || { echo "there is no benchmark yet"; break; }; \
		$(BIN)/python -m "benchmarks.$$(basename "$$file" .py)" $(ARGS) || status=1; \
	done; exit $$status

docs: $(VENV)/package
	$(BIN)/python -m hub.protocol.docs

venv: $(VENV)/package $(VENV)/tests $(VENV)/tools

clean:
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# Stamps. A venv that has a stamp was complete: pins that are newer than it remake it from nothing. Without a stamp
# it is new or was left half made, and is completed.
$(VENV)/runtime: requirements/runtime.txt requirements/build.txt
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer with its venv module is needed (Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "making $(VENV) with $(PYTHON) (once, and when pins change)"
	@if [ -e $@ ]; then $(PYTHON) -m venv --clear $(VENV); else $(PYTHON) -m venv $(VENV); fi
	@$(PIP) -r requirements/runtime.txt -r requirements/build.txt
	@touch $@

$(VENV)/package: $(VENV)/runtime pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/tests: $(VENV)/runtime requirements/test.txt
	@$(PIP) -r requirements/test.txt
	@touch $@

$(VENV)/tools: $(VENV)/tests requirements/dev.txt
	@$(PIP) -r requirements/dev.txt
	@touch $@

# Pins are made on the oldest supported Python, so that what only it needs is pinned too. Pins that still fit the .in
# files stay; `make pins ARGS=--upgrade` takes the newest.
COMPILE = build/pins/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

pins: build/pins/bin/pip-compile
	for name in runtime build test dev; do \
		CUSTOM_COMPILE_COMMAND="make pins" $(COMPILE) $(ARGS) -o requirements/$$name.txt requirements/$$name.in || exit 1; \
	done

build/pins/bin/pip-compile:
	python3.11 -m venv build/pins
	build/pins/bin/python -m pip install --quiet --disable-pip-version-check 'pip-tools==7.6.2'
