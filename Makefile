# `make demo` and `make test` need python3, make and the package registry only; everything else they bring themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Where no NVIDIA GPU is present a CPU build will do; other versions fetch gigabytes of CUDA.
GPU := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -c GPU)
ifeq ($(filter-out 0,$(GPU)),)
TORCH ?= torch==2.13.0
else
TORCH ?= torch
endif

# The same tests under the IPython of Colab and Kaggle, of 2024, and of today (the main environment).
OLD_IPYTHONS := ipython7 ipython8
PINS_ipython7 := ipython==7.34.0 ipykernel==6.17.1 ipywidgets==7.7.1 anywidget==0.9.21
PINS_ipython8 := ipython==8.* ipykernel==6.29.* ipywidgets==8.*
OLD_TESTS := tests/notebook tests/kernel
# the longest first
ROOMS := $(sort $(patsubst tests/%/,%,$(dir $(wildcard tests/*/test_*.py))))
ROOMS := browser notebook $(filter-out browser notebook,$(ROOMS))
JOBS ?= 2
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.PHONY: demo test lint docs docs-links bench bench-viewer fuzz gpu viewer clean room $(OLD_IPYTHONS:%=test-%) $(ROOMS:%=room-%)

demo: $(VENV)/.package
	$(BIN)/python notebooks/demo.py

# Each room in a process of its own: the walks over the heap would pass through what all others left behind. Two rooms at a
# time; what one says is shown when it has ended.
test: $(VENV)/.browser $(VENV)/.node $(OLD_IPYTHONS:%=.venv-%/.ready)
	$(MAKE) --no-print-directory -j$(JOBS) $(SYNC) $(OLD_IPYTHONS:%=test-%) $(ROOMS:%=room-%) room

$(OLD_IPYTHONS:%=test-%): test-%: .venv-%/.ready
	.venv-$*/bin/python -m pytest $(OLD_TESTS)

$(ROOMS:%=room-%): room-%: $(VENV)/.browser $(VENV)/.node
	$(BIN)/python -m pytest tests/$*

room: $(VENV)/.test
	$(BIN)/python -m pytest $(wildcard tests/test_*.py)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site, in docs/_build/html; links within it are checked by tests/docs, those to elsewhere need a network.
docs: $(VENV)/.test
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	$(BIN)/python -m pytest tests/docs

docs-links: $(VENV)/.test
	$(BIN)/python -m sphinx -b linkcheck docs docs/_build/links

bench: $(VENV)/.test
	$(BIN)/python -m tests.benchmarks

bench-viewer: $(VENV)/.browser
	$(BIN)/python -m tests.benchmarks viewer

# Bundles the viewer's JavaScript into ipygpumem/viewer/static; the bundles are committed, so that pip needs no Node.
viewer: $(VENV)/.node
	cd ipygpumem/viewer && node build.mjs

fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzz/fuzz_snapshot.py -max_total_time=600

gpu: $(VENV)/.test
	$(BIN)/python -m pytest tests/gpu -m gpu

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$(TORCH)"
	touch $@

$(VENV)/.package: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install -q -e ".[demo]"
	touch $@

$(VENV)/.test: $(VENV)/.package
	$(BIN)/python -m pip install -q -e ".[test,browser]"
	touch $@

# A Chromium for the tests in a browser, where one can be had: Debian's package for root, else Playwright's own.
$(VENV)/.browser: $(VENV)/.test
	$(BIN)/python tests/browser/chromium.py
	touch $@

# What bundles and tests the viewer's JavaScript, where there is Node; without it those tests say that they are skipped.
$(VENV)/.node: ipygpumem/viewer/package-lock.json $(VENV)/.torch
	if command -v npm >/dev/null; then cd ipygpumem/viewer && npm ci --no-audit --no-fund --silent; fi
	touch $@

$(VENV)/.lint: $(VENV)/.package
	$(BIN)/python -m pip install -q -e ".[test,lint]"
	touch $@

# An old IPython with its own kernel; torch and what has no opinion on IPython come from the main environment.
.venv-%/.ready: $(VENV)/.test
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install -q $(PINS_$*) nbclient nbformat pytest pytest-timeout hypothesis
	.venv-$*/bin/python tests/borrow.py $(VENV)
	touch $@

clean:
	rm -rf $(VENV) $(OLD_IPYTHONS:%=.venv-%) demo build dist docs/_build docs/made *.egg-info
