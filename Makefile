# Needs python3, make and a package index; everything else is installed into virtual environments in this directory.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Test processes. Many tests wait, so there is one more than a small machine has cores. If a test process crashes,
# `--dist worksteal` runs its remaining tests in another process. `--dist loadscope` would stop the test run.
JOBS ?= 3
# With this variable, which images of containers often set, each test process would rewrite and compile all tests and the
# package again, which takes 11 CPU seconds.
unexport PYTHONDONTWRITEBYTECODE
comma := ,
# $(call pytest,python,arguments). With RETRY=1, tests that failed run again, without other tests at the same time.
define pytest
$(1) -m pytest -n $(JOBS) --dist worksteal $(2)$(if $(RETRY), || { [ $$? = 1 ] && \
		echo "The failed tests run again." && $(1) -m pytest --last-failed --last-failed-no-failures none $(2); })
endef

# Without an NVIDIA GPU, the CPU build of PyTorch is enough and saves a download of several gigabytes. pip finds it among
# its configured indexes and links (PIP_FIND_LINKS), or in PyTorch's own index; otherwise it installs the CUDA build.
GPU := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -c GPU)
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
ifeq ($(filter-out 0,$(GPU)),)
TORCH ?= torch==2.13.0
CPU_TORCH ?= $(if $(filter Linux,$(shell uname -s)),torch==2.13.0+cpu)
else
TORCH ?= torch
endif
# PyTorch's CUDA build even where the CPU build could be installed: `===` does not match the version 2.13.0+cpu.
CUDA_TORCH := torch===2.13.0

# The IPython of Colab and Kaggle, and that of 2024; the main environment has the current one.
OLD_IPYTHONS := ipython7 ipython8
PINS_ipython7 := ipython==7.34.0 ipykernel==6.17.1 ipywidgets==7.7.1 anywidget==0.9.21
PINS_ipython8 := ipython==8.* ipykernel==6.29.* ipywidgets==8.*
# Python 3.10 if it is installed.
OLDEST_PYTHON ?= $(shell python3.10 --version >/dev/null 2>&1 && echo python3.10 || echo $(PYTHON))
# The output of targets that run at the same time, one after the other; make 3.81, which macOS has, cannot do this.
OUTPUT_SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
FAST := --ignore=tests/gpu --ignore=tests/browser --ignore=tests/kernel -m "not node and not cluster"

# These tests hardly wait, and each process imports PyTorch.
fast test-cuda test-oldest: JOBS = 2

.PHONY: demo test test-main test-old-ipythons fast test-cuda test-oldest lint docs docs-links bench bench-fit bench-viewer fuzz gpu workloads viewer clean $(OLD_IPYTHONS:%=test-%)

demo: $(VENV)/.package
	$(BIN)/python notebooks/demo.py

# `make -k test` runs both parts, even if tests of the first fail.
test: test-main test-old-ipythons

test-main: $(VENV)/.browser $(VENV)/.node
	$(call pytest,$(BIN)/python)

# At the same time and one process each, because each process imports PyTorch and all tests, which takes seconds.
test-old-ipythons: $(VENV)/.test
	+$(MAKE) --no-print-directory $(OUTPUT_SYNC) -j JOBS=0 $(OLD_IPYTHONS:%=test-%)

# What needs no browser, Node, kernel or cluster.
fast: $(VENV)/.test
	$(call pytest,$(BIN)/python,$(FAST))

# The tests that depend on the version of IPython. Other files need not be imported.
$(OLD_IPYTHONS:%=test-%): test-%: .venv-%/.ready
	$(call pytest,.venv-$*/bin/python,-m ipython $(shell grep -rl --include='*.py' mark.ipython tests))

# The fast tests with PyTorch's CUDA build, with or without a GPU.
test-cuda: .venv-cuda/.ready
	$(call pytest,.venv-cuda/bin/python,$(FAST))

# The fast tests with the oldest supported versions, which are the lower bounds in pyproject.toml.
test-oldest: .venv-oldest/.ready
	$(call pytest,.venv-oldest/bin/python,$(FAST))

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

# Predictions compared with runs on an H200. Each run continues the results in bench-fit.json, until all cases are done.
bench-fit: $(VENV)/.test
	$(BIN)/python -m tests.gpu.fit_accuracy --json bench-fit.json
	$(BIN)/python -m tests.gpu.fit_accuracy --docs bench-fit.json

bench-viewer: $(VENV)/.browser
	$(BIN)/python -m tests.benchmarks viewer

# Bundles the viewer's JavaScript into ipygpumem/viewer/static; the bundles are committed, so that pip needs no Node.
viewer: $(VENV)/.node
	cd ipygpumem/viewer && node build.mjs

fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzz/fuzz_snapshot.py -max_total_time=600

gpu: $(VENV)/.test
	$(BIN)/python -m pytest tests/gpu -m gpu

# The programs of tests/gpu/workloads, each without the extension and under each option, and a table of the results.
# Libraries that they need and that are not installed are named in the table.
workloads: $(VENV)/.test
	$(BIN)/python -m tests.gpu.workloads

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(if $(CPU_TORCH),$(BIN)/python -m pip install -q --retries 0 --no-deps --index-url $(CPU_INDEX) $(CPU_TORCH) \
		2>/dev/null || echo "No CPU build of PyTorch was found; installing the default build.")
	$(BIN)/python -m pip install -q "$(TORCH)"
	touch $@

$(VENV)/.package: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install -q -e ".[demo]"
	touch $@

# `make test` installs everything in one step.
$(VENV)/.test: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install -q -e ".[test$(if $(filter test,$(MAKECMDGOALS)),$(comma)browser)]"
	touch $@

# Chromium for the browser tests: Debian's headless shell for root, otherwise Playwright's build.
$(VENV)/.browser: $(VENV)/.test tests/browser/chromium.py
	$(BIN)/python -c "import jupyterlab, playwright" 2>/dev/null || $(BIN)/python -m pip install -q -e ".[test,browser]"
	$(BIN)/python tests/browser/chromium.py
	touch $@

# The tools that build and test the viewer's JavaScript. Without Node those tests are skipped.
$(VENV)/.node: ipygpumem/viewer/package-lock.json $(VENV)/.torch
	if command -v npm >/dev/null; then cd ipygpumem/viewer && npm ci --no-audit --no-fund --silent; fi
	touch $@

$(VENV)/.lint: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install -q -e ".[test,lint]"
	touch $@

# The environments below import everything but IPython, or PyTorch, from the main one.
.venv-cuda/.ready: $(VENV)/.test
	$(PYTHON) -m venv .venv-cuda
	.venv-cuda/bin/python -m pip install -q "$(CUDA_TORCH)"
	.venv-cuda/bin/python tests/borrow.py $(VENV)
	touch $@

# A separate environment without packages of the main one. uv finds the lowest versions that the bounds allow.
.venv-oldest/.ready: pyproject.toml
	$(OLDEST_PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install -q uv
	.venv-oldest/bin/uv pip compile -q --python .venv-oldest --resolution lowest-direct --no-deps --only-binary :all: \
		--extra outside --extra parallel pyproject.toml -o .venv-oldest/lowest.txt
	echo "pyarrow<26" >> .venv-oldest/lowest.txt  # later versions require NumPy 2
	.venv-oldest/bin/uv pip install -q --python .venv-oldest -c .venv-oldest/lowest.txt -e ".[test]"
	touch $@

.venv-%/.ready: $(VENV)/.test
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install -q $(PINS_$*)
	.venv-$*/bin/python tests/borrow.py $(VENV)
	touch $@

clean:
	rm -rf $(VENV) .venv-cuda .venv-oldest $(OLD_IPYTHONS:%=.venv-%) demo build dist docs/_build docs/generated *.egg-info
