# One command per chore, the same here and in CI.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Tests start some thousand processes, each of which would compile ccbench anew.
unexport PYTHONDONTWRITEBYTECODE

# Versions that the tests have passed with: what is published tomorrow fails nobody. 'make install CONSTRAINTS=/dev/null'
# takes the newest instead, constraints/lowest.txt is the oldest that pyproject.toml admits.
CONSTRAINTS ?= constraints/tested.txt
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c $(CONSTRAINTS)

.PHONY: install check smoke static goldens check-all install-lint lint types test install-exhaustive test-all portable reads nccl-tables tables gpu-day-bundle format clean

install: ## a virtual environment with ccbench from this checkout and what the quick tests need
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[dev]'

check: test ## what a change must pass, with 'make static'

SMOKE := $(VENV)/smoke
smoke: install ## a minute and a half: a run, the same again, a comparison, a page, a log of nccl-tests; 1 and 3 are verdicts
	rm -rf $(SMOKE)
	$(BIN)/ccbench run quick -q -o $(SMOKE)/base
	$(BIN)/ccbench run quick -q -o $(SMOKE)/new
	$(BIN)/ccbench compare $(SMOKE)/base $(SMOKE)/new -o $(SMOKE)/comparison.md || test $$? = 1 -o $$? = 3
	$(BIN)/ccbench report $(SMOKE)/new -o $(SMOKE)/report.html
	$(BIN)/ccbench report $(SMOKE)/new --format nccl-tests -o $(SMOKE)/log
	$(BIN)/ccbench check $(SMOKE)/log/*.txt -o $(SMOKE)/imported

static: install install-lint lint types ## what a minute shows: style, types, layers, sizes, and that all tests are there
	$(BIN)/pytest -q tests/test_layers.py tests/test_budget.py tests/test_imports.py tests/test_readme.py
	$(BIN)/pytest -q --collect-only -m "" > $(VENV)/collected.txt || { tail -n 40 $(VENV)/collected.txt; exit 1; }

check-all: install-lint lint types install-exhaustive test-all nccl-tables ## and what repeats: every mutant, cut, instance, torch, CuPy

install-lint: ## ruff, mypy and the types of libraries: 90 MB
	$(INSTALL) -e '.[dev,lint]'

lint: ## style, of all files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: ## of all files
	$(BIN)/mypy

SIDE_BY_SIDE := --numprocesses auto --dist worksteal
test: ## the quick tier
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not exhaustive and not alone"
	$(BIN)/pytest -m "not exhaustive and alone"

goldens: ## renew what whole inputs become: tests/*/goldens, to be read before they are committed
	CCBENCH_GOLDENS=renew $(BIN)/pytest -q $$(git ls-files 'tests/*/test_goldens.py')
	$(BIN)/python -m tests.goldens

install-exhaustive: ## torch (its CPU build, where pip is told of it) and NVRTC: 1 GB
	$(INSTALL) -e '.[dev,exhaustive]'

test-all: ## the quick tier and what it leaves out
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not alone" --hypothesis-profile exhaustive
	$(BIN)/pytest -m "alone"

portable: install ## the first suite, and the tests of what libraries and Pythons differ in
	$(BIN)/ccbench run quick -q -o $(VENV)/quick
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "portable and not exhaustive and not alone"

reads: install ## that a Python takes all of ccbench and its tests
	$(BIN)/ccbench --version
	$(BIN)/pytest -q tests/test_budget.py tests/test_imports.py
	$(BIN)/pytest -q --collect-only -m "" > $(VENV)/collected.txt || { tail -n 40 $(VENV)/collected.txt; exit 1; }

# What the tables below depend on. Their last good run is named by its digest in tests/gpu/tables.sha256.
TABLES = $(shell git ls-files ccbench/backends/nccl ccbench/backends/cuda tests/gpu/test_nccl_library.py tests/gpu/test_cupy.py \
	tests/faults/test_oneccl.py) $(CONSTRAINTS)
TABLES_DIGEST = cat $(TABLES) | sha256sum
tables: ## 'make nccl-tables', where something that it depends on has changed since
	@$(TABLES_DIGEST) | cmp -s - tests/gpu/tables.sha256 && echo "tables: as they passed last" || \
		$(MAKE) nccl-tables PYTHON="$(PYTHON)" VENV="$(VENV)"

# What ccbench says of NCCL, cuBLAS and CuPy against the real ones, which import without a driver, and oneCCL between
# processors; 3.3 GB of wheels.
# In an environment of their own: where CuPy is, other tests take what they find for a machine with GPUs.
CUPY ?= 13.6.0 14.2.0
nccl-tables: SHELL := bash
nccl-tables: .SHELLFLAGS := -o pipefail -c
nccl-tables: ## the calls of CuPy, NCCL and oneCCL against installed ones; needs no GPU
	$(PYTHON) -m venv $(VENV)-cupy
	for cupy in $(CUPY); do \
		$(VENV)-cupy/bin/pip install --quiet --disable-pip-version-check --no-compile -c $(CONSTRAINTS) "cupy-cuda12x==$$cupy" \
			nvidia-nccl-cu12 nvidia-cublas-cu12 hypothesis pytest pytest-timeout -e . && \
		$(VENV)-cupy/bin/pytest -q -m '' tests/gpu/test_nccl_library.py tests/gpu/test_cupy.py \
			| tee $(VENV)-cupy/tables.txt && \
		grep -Eq '^([4-9][0-9]|[1-9][0-9]{2,}) passed' $(VENV)-cupy/tables.txt || exit 1; \
	done

	$(PYTHON) -m venv $(VENV)-oneccl
	$(VENV)-oneccl/bin/pip install --quiet --disable-pip-version-check --no-compile -c $(CONSTRAINTS) hypothesis pytest pytest-timeout \
		-e '.[oneccl]'
	$(VENV)-oneccl/bin/pytest -q -m '' tests/faults/test_oneccl.py | tee $(VENV)-oneccl/tables.txt
	grep -q '^8 passed' $(VENV)-oneccl/tables.txt
	$(TABLES_DIGEST) > tests/gpu/tables.sha256

# For a machine with a GPU, CuPy, NCCL, pytest and the usual scientific packages, which can download nothing.
GPU_PYTHON ?= 3.12
gpu-day-bundle: ## build/gpu-day.tar.gz: this commit and the wheels that such a machine lacks, under 60 MiB
	rm -rf build/gpu-day build/gpu-day.tar.gz
	mkdir -p build/gpu-day
	git archive HEAD | tar -x -C build/gpu-day
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --only-binary :all: --implementation cp \
		--python-version $(GPU_PYTHON) --platform manylinux2014_x86_64 --dest build/gpu-day/wheels \
		$$($(PYTHON) -c 'from benchmarks.gpu_day import CARRIED; print(*CARRIED)')
	tar -C build -czf build/gpu-day.tar.gz gpu-day
	ls -l build/gpu-day.tar.gz
	test $$(stat -c %s build/gpu-day.tar.gz) -lt $$((60 << 20))

format: ## let ruff write what it would otherwise complain about
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
