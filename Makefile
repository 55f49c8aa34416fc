# Everything happens inside $(VENV); the stamps in it say what is installed already.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   ?= .venv

BIN    := $(VENV)/bin
# Python compiles the modules that it imports; pip would compile every module of torch and of the others.
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile
# The stamp of torch is named after what was asked for, so that another TORCH is another target. It is also a
# pip constraints file with the version that came: no extra can put another torch in its place.
STAMP  := $(VENV)/.torch-$(firstword $(shell printf '%s' '$(TORCH)' | cksum))
# An editable install lists the modules that it finds: with another list it is another target.
MODULES := $(firstword $(shell find src/acmo -name '*.py' | sort | cksum))
PACKAGE := $(VENV)/.package-$(MODULES)
NATIVE := CMakeLists.txt $(wildcard src/acmo/native/*.c src/acmo/native/*.h)
# Beside a CPU torch: without --no-deps pip could bring what CUDA needs. The tests run its interpreter and its compiler.
TRITON := triton==3.7.1
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

unexport PYTHONPATH  # what is tested is the installed package
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-nightly lint docs clean

help:  ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## compare ours with SGD, Adam, AdamW and Muon on digits: tuned, five seeds, a report
	@$(BIN)/acmo compare digits --optimizers acmo,row-acmo,spectral-acmo,sgd-momentum,adam,adamw,muon

test: lint  ## ruff, mypy and the quick tests: the core, the backends, the rivals, every command once
	$(PYTEST) --tier quick

test-all: $(VENV)/.dev-all  ## all tests but the nightly ones, and the coverage of src/acmo
	$(PYTEST) --cov=acmo --cov-report=
	@echo "line coverage of src/acmo, without child processes: $$($(BIN)/python -m coverage report --format=total)%"

test-nightly: $(VENV)/.dev-all  ## the full cross products of options, of which the others run a part
	$(PYTEST) --tier nightly

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers auto

docs: $(VENV)/.docs  ## build the documentation into site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean:  ## remove the virtual environment and everything built or cached
	rm -rf $(VENV) build dist site .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@echo "creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

$(STAMP): | $(BIN)/python
	@echo "installing $(TORCH) ..."
	@rm -f $(VENV)/.torch-*
	@$(PIP) $(TORCH)
	@$(BIN)/python -c "from importlib.metadata import version; print('torch==' + version('torch'))" > $@

$(PACKAGE): $(STAMP) pyproject.toml $(NATIVE)
	@echo "installing acmo, with its kernel if there is a C compiler ..."
	@$(PIP) -c $(STAMP) --editable .
	@rm -f $(VENV)/.package-*
	@touch $@

$(VENV)/.demo: $(STAMP) pyproject.toml | $(PACKAGE)
	@echo "installing what the demo needs ..."
	@$(PIP) -c $(STAMP) "acmo[lab]"
	@touch $@

$(VENV)/.docs: $(STAMP) pyproject.toml | $(PACKAGE)
	@echo "installing what the documentation needs ..."
	@$(PIP) -c $(STAMP) "acmo[docs]"
	@touch $@

# acmo[dev] is met by the acmo just installed: pip adds the extra's packages and builds nothing again.
$(VENV)/.dev: $(STAMP) pyproject.toml | $(PACKAGE)
	@echo "installing what the quick tests need ..."
	@$(PIP) -c $(STAMP) "acmo[dev]"
	@$(PIP) --no-deps $(TRITON) || echo "no Triton for this platform: its tests are skipped"
	@touch $@

$(VENV)/.dev-all: $(STAMP) pyproject.toml | $(PACKAGE)
	@echo "installing what all tests need ..."
	@$(PIP) -c $(STAMP) "acmo[dev-all]"
	@$(PIP) --no-deps $(TRITON) || echo "no Triton for this platform: its tests are skipped"
	@touch $@ $(VENV)/.dev
