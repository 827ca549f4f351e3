# The same commands as README.md and CONTRIBUTING.md; `make` lists them.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup test coverage long lint types docs bench

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(INSTALLED) ## install bertjax and what tests and documentation need into .venv

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e '.[dev]'
	@touch $@

test: setup ## the ordinary tests
	$(BIN)/pytest

coverage: setup ## branches of bertjax that the ordinary tests take, also in subprocesses
	$(BIN)/pytest --cov --cov-report=term:skip-covered $(TESTS)

long: setup ## whole runs, further cases, statistics
	$(BIN)/pytest -m long

lint: setup ## lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy
	$(BIN)/mypy

docs: setup ## the site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup ## the step of BERT-mini beside that of transformers
	$(BIN)/bertjax benchmark --config bert:mini --baseline hf
