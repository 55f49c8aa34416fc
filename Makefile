# Everything happens inside $(VENV); the stamps in it say what is installed already.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   ?= .venv

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check
# The stamp of torch is named after what was asked for, so that another TORCH is another target. It is also a
# pip constraints file with the version that came: no extra can put another torch in its place.
STAMP  := $(VENV)/.torch-$(firstword $(shell printf '%s' '$(TORCH)' | cksum))
NATIVE := CMakeLists.txt $(wildcard src/acmo/native/*.c src/acmo/native/*.h)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

unexport PYTHONPATH  # what is tested is the installed package
.DELETE_ON_ERROR:
.PHONY: help demo test test-all lint docs clean

help:  ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## compare the paper's seven optimizers on digits: tuned, five seeds, a report
	@$(BIN)/acmo compare digits

test: lint  ## ruff, mypy, and every test that is not slow by nature
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.dev  ## the tests that are slow by nature
	$(PYTEST) -m slow || { [ $$? -eq 5 ] && echo "there is no slow test"; }  # 5: pytest collected none

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers auto

docs: $(VENV)/.docs  ## build the documentation into site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean:  ## remove the virtual environment and everything built or cached
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@echo "creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

$(STAMP): | $(BIN)/python
	@echo "installing $(TORCH) ..."
	@rm -f $(VENV)/.torch-*
	@$(PIP) $(TORCH)
	@$(BIN)/python -c "from importlib.metadata import version; print('torch==' + version('torch'))" > $@

$(VENV)/.package: $(STAMP) pyproject.toml $(NATIVE)
	@echo "installing acmo, with its kernel if there is a C compiler ..."
	@$(PIP) -c $(STAMP) --editable .
	@touch $@

$(VENV)/.demo: $(STAMP) pyproject.toml | $(VENV)/.package
	@echo "installing what the demo needs ..."
	@$(PIP) -c $(STAMP) "acmo[lab]"
	@touch $@

$(VENV)/.docs: $(STAMP) pyproject.toml | $(VENV)/.package
	@echo "installing what the documentation needs ..."
	@$(PIP) -c $(STAMP) "acmo[docs]"
	@touch $@

# acmo[dev] is met by the acmo just installed: pip adds the extra's packages and builds nothing again.
$(VENV)/.dev: $(STAMP) pyproject.toml | $(VENV)/.package
	@echo "installing what the tests need ..."
	@$(PIP) -c $(STAMP) "acmo[dev]"
	@touch $@
