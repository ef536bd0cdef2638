# One command per chore, the same here and in CI.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: install check lint types test nccl-tables gpu-day-bundle format clean

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

# What ccbench says of NCCL, cuBLAS and CuPy against the real ones, which import without a driver; 1.5 GB of wheels.
CUPY ?= 14
nccl-tables: ## the calls of CuPy and NCCL against installed ones; needs no GPU
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check 'cupy-cuda12x==$(CUPY).*' nvidia-nccl-cu12 \
		nvidia-cublas-cu12 hypothesis pytest pytest-timeout -e .
	$(BIN)/pytest -q tests/gpu/test_nccl_library.py tests/gpu/test_cupy.py | tee $(VENV)/nccl-tables.txt
	grep -Eq '^([4-9][0-9]|[1-9][0-9]{2,}) passed' $(VENV)/nccl-tables.txt

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
