# One command per chore, the same here and in CI.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: install check lint types test format clean

install: ## a virtual environment with ccbench from this checkout and everything for its tests
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'

check: lint types test ## everything a change must pass

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

test:
	$(BIN)/pytest --numprocesses auto --dist worksteal -m "not alone"
	$(BIN)/pytest -m alone

format: ## let ruff write what it would otherwise complain about
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
