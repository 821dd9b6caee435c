# Everything a contributor runs. `make` alone lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
WORKERS ?= 4
# Made by `orchestrator images build` where no image can be pulled; builds reach no index there.
LOCAL_BASE := subagent-orchestrator/base:bookworm
COMPILE := $(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 \
	--generate-hashes --no-annotate --no-header
SERVER_BUILD := --tag subagent-orchestrator/server:latest --file images/orchestrator/Dockerfile .

# Tests start hundreds of Python processes; without __pycache__, each would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test lint attacks bench screenshots soak openapi image lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv, find or start a container engine, build the agent image
	@.ci/setup

demo: ## Hand an agent a task through MCP: real client, real container, real CLI; no key needed
	@.ci/setup demo
	@$(BIN)/orchestrator demo

# pytest compiles the tests while mypy takes the other core; else each worker would compile them all.
test: setup ## Set up, lint and run all tests (WORKERS=4)
	@$(BIN)/python -m pytest --collect-only -q > /dev/null 2>&1 & compiles=$$!; code=0; \
		$(MAKE) --no-print-directory lint || code=$$?; kill $$compiles 2> /dev/null; exit $$code
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: setup ## Check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

attacks: setup ## Write the table of attacks in tests/attacks/README.md from the tests
	$(BIN)/python -m tests.attacks.table

openapi: setup ## Write the description of the HTTP API that is shipped
	$(BIN)/python -m tests.surfaces.http.described

bench: setup ## Measure against the plain docker commands one would use instead
	$(BIN)/python -m tests.bench

screenshots: setup ## Make the pictures of the page in .github/screenshots anew
	$(BIN)/python -m tests.surfaces.web.screenshots

soak: setup ## Run the long tests: containers killed in every way, garbage, 200 mutants (MUTANTS, SEED)
	$(BIN)/python -m pytest tests/soak -p no:xdist -q -s

image: setup ## Build the orchestrator's own image, for compose.yaml
	@rm -rf .cache/wheelhouse
	@if docker image inspect $(LOCAL_BASE) > /dev/null 2>&1; then \
		$(BIN)/python -m pip download --disable-pip-version-check --dest .cache/wheelhouse \
			--python-version 3.11 --only-binary=:all: --require-hashes --requirement .ci/requirements.lock && \
		docker build --build-arg BASE=$(LOCAL_BASE) $(SERVER_BUILD); \
	else docker build $(SERVER_BUILD); fi
	@docker image prune --force --filter label=orchestrator.image=server > /dev/null
	@rm -rf .cache/wheelhouse  # an old one would outlive its lock

lock: setup ## Refresh .ci/requirements.lock and, of it, .ci/demo.lock from pyproject.toml
	$(BIN)/python -m pip install --quiet 'uv>=0.9'
	$(COMPILE) --upgrade --group dev --extra otel --output-file .ci/requirements.lock pyproject.toml
	$(COMPILE) --group editable --constraint .ci/requirements.lock \
		--output-file .ci/demo.lock pyproject.toml
	@if grep -nE '://|file:|^-' .ci/*.lock; then \
		echo 'the lock names a place of this machine; see above' >&2; exit 1; fi

clean: ## Remove .venv and caches; images stay (`orchestrator images prune`)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
