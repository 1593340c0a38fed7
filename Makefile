# Everything starts from a bare machine with python3; the environment is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST_READY := $(VENV)/.test-ready
DOCS_READY := $(VENV)/.docs-ready
DOCS := $(or $(wildcard $(TEST_READY)),$(DOCS_READY))  # what the tests need has what the pages need
JOBS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=15
# Kernels and C++ that clang-format lays out.
FORMATTED := $(wildcard src/rung/ladders/*/*.cu src/rung/ladders/*/*.cuh) $(shell git ls-files '*/src/**/*.cpp' '*/src/**/*.h' 'src/**/*.cpp' 'src/**/*.h' | grep -v -e /standard/ -e /ladders/ -e /include/)

.PHONY: demo wheels test test-slow test-all lint check measure tables tables-check docs site browser clean help

help:
	@echo "make demo    install (1.6 GB without a GPU), then write a story with the bundled model"
	@echo "make test    install what the tests need, then run the fast ones"
	@echo "make test-slow  run the slow ones, but for whole checks of rungs"
	@echo "make test-all  run every test that needs no GPU: also the verdicts on all rungs, long loads, Ray and Slurm"
	@echo "make check   every rung against its reference (emulated where there is no GPU)"
	@echo "make measure  renew every figure that is shown (needs a GPU; call again to go on)"
	@echo "make tables  write the tables and pictures that are made from results/"
	@echo "make docs    build the documentation site in build/site"
	@echo "make site    the same, with the outputs of the notebooks, which are run"
	@echo "make wheels  build what pip installs, into dist/"
	@echo "make lint    ruff, mypy, clang-format and hadolint"
	@echo "make clean   remove the environment and caches of this folder"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Without a GPU torch's CPU build is taken, where its index is reached: PyPI's brings some three gigabytes of CUDA libraries.
# Python compiles what it imports; pip would compile everything, which takes minutes.
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile
CPU_TORCH := https://download.pytorch.org/whl/cpu
TORCH := $(if $(wildcard /dev/nvidiactl),,$(PIP) --retries 0 --timeout 15 \
  --index-url $(CPU_TORCH) $(shell grep -m1 '^torch==' constraints.txt) 2>/dev/null || true)

# The checkout's packages beside rung; one run of pip for all, which would resolve the same packages twice.
OTHERS := -e ./gpuless -e ./reproduce
DECLARED := pyproject.toml gpuless/pyproject.toml reproduce/pyproject.toml constraints.txt

$(READY): $(DECLARED) | $(BIN)/python
	@$(TORCH)
	$(PIP) -c constraints.txt -e '.[models]' $(OTHERS)
	@touch $@

$(TEST_READY): $(DECLARED) | $(BIN)/python
	@$(TORCH)
	$(PIP) -c constraints.txt -e '.[test]' $(OTHERS)[mpi]
	@touch $(READY) $@

$(DOCS_READY): $(DECLARED) | $(BIN)/python
	@$(TORCH)
	$(PIP) -c constraints.txt -e '.[docs]' $(OTHERS)
	@touch $(READY) $@

wheels: $(READY)
	$(PIP) 'setuptools>=77'
	$(BIN)/python tools/wheels.py

demo: $(READY)
	@$(BIN)/rung generate "Once upon a time" --max-new-tokens 200 --seed 7 --stats

check: $(TEST_READY)  # rungs in Triton among them
	$(BIN)/rung check

measure: $(READY)
	$(BIN)/python benchmarks/measure.py

tables: $(READY)
	$(BIN)/python benchmarks/tables.py

tables-check: $(TEST_READY)  # rungs in Triton among them
	$(BIN)/python benchmarks/tables.py --check

docs: $(DOCS)
	$(BIN)/mkdocs build --strict --site-dir build/site

site: $(DOCS)
	RUN_NOTEBOOKS=1 $(BIN)/mkdocs build --strict --site-dir build/site

test: $(TEST_READY)
	$(PYTEST) -m "not gpu and not slow and not soak"

# The slow tests of tests/check judge every rung and some hundred files, an hour of a processor from an empty cache: test-all has them.
test-slow: $(TEST_READY)
	$(PYTEST) -m "slow and not gpu and not soak" --ignore=tests/check

test-all: $(TEST_READY)
	$(PYTEST) -m "not gpu" --fresh
	.ci/slurm $(BIN)/python -m pytest reproduce/tests/test_slurm.py

# The report is tested in a real browser; without one that test is skipped and says so.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "no chromium and no way to install it: the report's test in a browser will be skipped"

lint: $(TEST_READY)
	$(BIN)/ruff check
	@$(BIN)/clang-format --dry-run -Werror $(FORMATTED)
	$(BIN)/hadolint Dockerfile
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build
