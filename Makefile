# exactgraph: `make confirm` runs the workflow, `make test` the tests. Both need nothing but Python 3.11+ with its venv module.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
TORCH := $(shell EXACTGRAPH_TORCH='$(EXACTGRAPH_TORCH)' tools/torch-build)
LOCK := requirements-$(or $(TORCH),$(error tools/torch-build did not choose what to install)).txt
# What is installed is known by content: a stamp's name carries the digest of the pinned versions and of the project's metadata.
WORKFLOW_STAMP := $(VENV)/.workflow-$(shell cat $(LOCK) pyproject.toml tools/make-venv | sha256sum | cut -c1-16)
TESTS_STAMP := $(VENV)/.tests-$(shell cat $(LOCK) requirements-dev.txt pyproject.toml tools/make-venv | sha256sum | cut -c1-16)
RUN := PATH="$(CURDIR)/$(BIN):$$PATH"
PYTEST := $(RUN) pytest

.PHONY: confirm install test test-slow test-gpu fuzz figures lint format lock clean
.DEFAULT_GOAL := confirm

confirm: $(WORKFLOW_STAMP)  ## run the workflow, then show candidates and verdict
	@$(RUN) snakemake --no-hooks --cores 1 confirm
	@$(RUN) exactgraph table

install: $(TESTS_STAMP)  ## make the virtual environment and nothing else

test: $(TESTS_STAMP)  ## everything that is not slow; GPU tests are skipped and counted where there is no GPU
	@$(PYTEST) -m "not slow"

test-slow: $(TESTS_STAMP)  ## whole workflows, kills, real models
	@$(PYTEST) -m slow

test-gpu: $(TESTS_STAMP)  ## only what needs an NVIDIA GPU
	@$(PYTEST) -m gpu

fuzz: $(TESTS_STAMP)  ## 500 random sequences of (mutate, generate, restore), optimised and eager, into fuzz.json
	@$(RUN) python -m tests.fuzz --sequences 500 --seed 0 --out fuzz.json

figures: $(TESTS_STAMP)  ## the runtime's cost of checks and memory of 100 optimise/restore rounds, into checks.json and memory.json
	@$(RUN) python -m tests.figures.checks --out checks.json
	@$(RUN) python -m tests.figures.memory --out memory.json

lint: $(TESTS_STAMP)
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy
	@$(RUN) snakefmt --check Snakefile workflow
	@$(RUN) snakemake --lint

format: $(TESTS_STAMP)
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .
	@$(RUN) snakefmt Snakefile workflow

lock:  ## resolve pyproject.toml anew and write the pinned versions, for CPU and for CUDA
	@tools/lock

clean:  ## remove the virtual environment and tool caches; artifacts stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

# The tests' environment holds the workflow's: making it satisfies both.
$(WORKFLOW_STAMP):
	@tools/make-venv $(VENV) $(LOCK)
	@rm -f $(VENV)/.workflow-*
	@touch $@

$(TESTS_STAMP):
	@tools/make-venv $(VENV) $(LOCK) requirements-dev.txt
	@rm -f $(VENV)/.workflow-* $(VENV)/.tests-*
	@touch $@ $(WORKFLOW_STAMP)
