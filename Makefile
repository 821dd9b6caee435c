# Everything a contributor runs. `make` alone lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
WORKERS ?= 4

.PHONY: help setup demo test lint bench soak lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv, find or start a container engine, build the agent image
	@.ci/setup

demo: setup ## Prove on this machine's engine that a container keeps its promises
	@$(BIN)/orchestrator doctor

test: setup lint ## Set up, lint and run all tests (WORKERS=4)
	$(BIN)/python -m pytest -n $(WORKERS)

lint: setup ## Check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: setup ## Measure against the plain docker commands one would use instead
	$(BIN)/python -m tests.bench

soak: setup ## Run the long tests: hundreds of containers, killed in every way
	$(BIN)/python -m pytest tests/soak -p no:xdist -q -s

lock: setup ## Refresh .ci/requirements.lock from pyproject.toml
	$(BIN)/python -m pip install --quiet 'uv>=0.9'
	$(BIN)/uv pip compile --quiet --no-config --upgrade --universal --python-version 3.11 \
		--generate-hashes --no-annotate --no-header --group dev \
		--output-file .ci/requirements.lock pyproject.toml
	@if grep -nE '://|file:|^-' .ci/requirements.lock; then \
		echo 'the lock names a place of this machine; see above' >&2; exit 1; fi

clean: ## Remove .venv and caches; images stay (`orchestrator images prune`)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
