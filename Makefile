# make install, make train, make test: `make help` says what they do.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.pcaffe-installed
RANKS ?= 2
# The number of processes for tests; tests under mpirun share one of them.
WORKERS ?= auto
PYTEST_FLAGS ?= -q
BENCH_FLAGS ?=
# A copy of MNIST that lies at hand spares the download.
MNIST_MIRROR ?= $(wildcard $(abspath ../shared/data/mnist))

export MNIST_MIRROR
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help install train test test-long test-torch sweep test-gpu bench bench-gpu lint format proto catalogue docs notebooks pictures clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1	/p' Makefile | awk -F '\t' '{printf "make %-10s %s\n", $$1, $$2}'
	@echo
	@echo "PYTHON=python3.12 chooses the Python that make install uses (3.10 or newer)."

install: $(INSTALLED) ## make .venv and install pcaffe into it, with MPI and the developers' tools

$(INSTALLED): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "pcaffe needs Python 3.10 or newer, and $(PYTHON) is not: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || $(PYTHON) -m virtualenv $(VENV) || { \
	  rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment: install its ensurepip (on Debian the package" \
	    "python3-venv) or virtualenv, or choose another one with PYTHON=…" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable '.[mpi,dev]'
	@# On all cores, which pip does not use: without, every process that starts may take twice as long.
	@$(BIN)/python -m compileall -q -j 0 -x '/tests/' pycaffe_dist $(VENV)/lib >/dev/null || true
	@$(BIN)/pcaffe warmup
	@touch $@

train: install ## get MNIST and train LeNet on $RANKS ranks (2): the quick start
	scripts/train_lenet.sh --quick -n $(RANKS)

test: install ## run the tests; name the ten that took longest
	$(BIN)/python -m pytest -n $(WORKERS) -m "not long" --durations=10 $(PYTEST_FLAGS)

test-long: install ## run the tests that take minutes, too
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_FLAGS)

test-torch: install ## run the tests of exports with PyTorch, which it installs if it is missing
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install --quiet torch
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_FLAGS) tests/exporting

sweep: install ## compile all microkernels for many processors, to see that LLVM survives
	$(BIN)/python -m pytest -n 0 $(PYTEST_FLAGS) tests/kernels/test_compile_sweep.py

test-gpu: install ## run the GPU tests and timings on a real GPU, in three parts; STEPS=…: some
	@$(BIN)/python tests/gpu/on_device.py $(STEPS)

bench: install ## time training beside PyTorch's (TORCH_PYTHON=…) and Caffe's (CAFFE_BIN=…), and inference
	$(BIN)/python benchmarks/cpu.py --json bench.json --svg bench.svg $(BENCH_FLAGS)
	$(BIN)/python benchmarks/inference.py --json inference.json

bench-gpu: install ## time training iterations on a GPU beside PyTorch's (TORCH_PYTHON=…)
	@$(BIN)/python benchmarks/gpu.py --json gpu.json $(BENCH_FLAGS)

lint: install ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install ## format the sources and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: install ## generate the message classes from proto/caffe.proto
	$(BIN)/python scripts/generate_proto.py

catalogue: install ## write the catalogues of layers, solvers, flags and forks' fields from the sources
	@for name in layers solvers flags forks; do $(BIN)/python scripts/generate_$$name.py || exit; done

docs: install ## build the documentation as a site in site/
	@$(BIN)/python -c 'import mkdocs, mkdocs_jupyter' 2>/dev/null || $(BIN)/pip install --quiet --editable '.[docs]'
	$(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

notebooks: install ## run the notebooks in docs/examples/ and keep their outputs
	@$(BIN)/python -c 'import nbclient, ipykernel' 2>/dev/null || $(BIN)/pip install --quiet --editable '.[docs]'
	$(BIN)/python scripts/run_notebooks.py

pictures: install ## draw the pictures of README.md and the guides
	data/mnist/get_mnist.sh && data/mnist/create_mnist.sh
	$(BIN)/python scripts/draw_pictures.py

clean: ## remove what make install and make train made, but not the data
	rm -rf $(VENV) build site .cache *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
