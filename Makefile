# Everything a newcomer needs: `make test` and `make reproduce` work from a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install test test-gpu oldest quick check format reproduce bench docs soak clean
.DEFAULT_GOAL := help

help: ## print this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "offtrace needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing into $(VENV) (once; about a minute) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP) ## make .venv with the tested versions

test: check ## format, lint, types, then every test
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

# JAX has a process of its own: what its threads do can end the capture of a CUDA graph.
ON_GPU := PYTHONPATH="$(CURDIR)/src$${PYTHONPATH:+:$$PYTHONPATH}" XLA_FLAGS= XLA_PYTHON_CLIENT_PREALLOCATE=false \
  $(PYTHON) -m pytest -q -p no:benchmark

test-gpu: ## the tests of the CUDA kernels, and of JAX, with PYTHON, on a machine that has a GPU
	@$(PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || \
	  { echo "make test-gpu needs a GPU, and PyTorch sees none; make test covers the kernels without one"; exit 1; }
	$(ON_GPU) tests/conformance/test_gpu_device.py tests/conformance/test_gpu.py
	$(ON_GPU) tests/conformance/test_jax_device.py

oldest: ## every test with the oldest versions, in .venv-oldest (Python 3.11)
	@test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet -c constraints-oldest.txt -e '.[dev]'
	XLA_FLAGS="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true" \
	  .venv-oldest/bin/python -m pytest -q -n 2 --dist worksteal

QUICK := $(addprefix tests/,conformance/test_operator.py $(addprefix unit/test_,structure.py docs.py input_checks.py \
  model_input_checks.py traces.py policies.py mdp.py safety.py spec.py scores.py statistics.py tables.py \
  checkpoints.py store.py files.py telemetry.py display.py))

quick: $(STAMP) ## lint, and in about a minute the tests that compile no JAX program
	$(BIN)/ruff check --quiet .
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -k "not jax and not million" $(QUICK)

check: $(STAMP) ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/ty check --python $(VENV)

format: $(STAMP) ## rewrite the files as `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reproduce: $(STAMP) ## the paper in minutes, and a page of it: reproduction/index.html
	$(BIN)/offtrace reproduce

bench: $(STAMP) ## this machine's speed beside its peers, in bench-results/
	$(BIN)/offtrace bench

docs: $(STAMP) ## the documentation as pages, in site/
	$(BIN)/python docs/build.py

soak: $(STAMP) ## kill it, damage its files, give it nonsense, 1,100 times; about an hour
	$(BIN)/python soak/run.py

clean: ## remove what the other targets made
	rm -rf $(VENV) site reproduction bench-results build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
