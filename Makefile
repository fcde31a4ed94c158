# One environment in .venv, made from the lock by whatever target needs it first.
export PYTHONDONTWRITEBYTECODE :=  # workers are new processes: each would compile all that it imports
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What breaks where another Python, another version of a dependency or a packaging mistake does: files and samples, the
# command line, graphs, Q/DQ nodes, solvers, processes, and what joins through entry points.
SELECTION := -m "not exhaustive" tests/test_data.py tests/test_archives.py tests/test_yaml_file.py tests/test_calls.py \
  tests/test_telemetry.py tests/test_release.py tests/cli tests/space tests/model tests/quant tests/search tests/report \
  tests/measure --ignore tests/report/test_browser.py
INSTALLER := requirements/installer.lock
LOCK := requirements/dev.lock
ADAPTERS := requirements/adapters.lock

.DEFAULT_GOAL := help
BUDGET ?= 1h
JOBS ?= auto
PARALLEL = -n $(JOBS) --dist worksteal
.PHONY: help setup demo test test-all test-wheel test-lowest browser services engines emulated-arm fuzz lint format bench layout surface core docs changelog release dist extras lock clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 10

setup: $(STAMP)  ## make .venv with the locked dependencies and this package

$(STAMP): $(INSTALLER) $(LOCK) pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(INSTALLER)
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r $(LOCK)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	touch $@

demo: $(STAMP)  ## tune the digits example within three minutes
	$(BIN)/inlay tune examples/digits/digits.onnx -o out/digits --restart \
	  --data examples/digits/data.npz --labels examples/digits/labels.npy --metric top1 --max-drop 0.5% --budget 60s \
	  --accept-unproven  # 540 samples can hardly show half a percent: the verdict says so
	$(BIN)/python examples/digits/evaluate.py out/digits/model.onnx

test: $(STAMP)  ## test every promise in minutes: all but the exhaustive tests, JOBS processes at once
	$(BIN)/python -m pytest $(PARALLEL) -m "not exhaustive"

test-all: $(STAMP)  ## run every test
	$(BIN)/python -m pytest $(PARALLEL)

browser:  ## install the browser that the report is tested in, where apt may
	@command -v chromium >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	  || echo "there is no Chromium, and it could not be installed: the tests of the report in a browser are skipped"

services:  ## install the SSH server that boards are tested behind, where apt may; none is left running
	@command -v sshd >/dev/null || test -x /usr/sbin/sshd \
	  || { test "$$(id -u)" = 0 && apt-get update -qq \
	    && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends openssh-server openssh-client >/dev/null; } \
	  || echo "there is no sshd, and it could not be installed: the tests of boards over SSH are skipped"

ENGINES = $(shell sed -nE 's/^(\# )?((tensorrt-rtx|cuda-|tensorrt-cu13-bindings).*==.*)/\2/p' requirements/gpu.txt)
engines: $(STAMP)  ## install NVIDIA's compiler for RTX GPUs (110 MB), what is checked of TensorRT's own API, and what adapters are tested with
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(ADAPTERS) \
	  || echo "the extras mcp and datasets could not be installed: their tests are skipped"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(ENGINES) \
	  || echo "TensorRT for RTX could not be installed: tests that build engines are skipped"

emulated-arm: $(STAMP)  ## unpack ONNX Runtime for ARM64 and an emulator into the cache, where there is Debian's apt
	@$(BIN)/python -m tests.support.emulated_arm

fuzz: $(STAMP)  ## attack every command with hostile inputs for BUDGET=1h; reproducers go to out/findings
	$(BIN)/python -m tests.attack fuzz --budget $(BUDGET) $(ARGS)

dist: $(STAMP)  ## build sdist, wheel and bill of materials into dist, and docs/licences.md
	$(BIN)/python -m release dist

test-wheel: dist  ## test a selection against the wheel alone; PYTHON chooses another Python
	$(BIN)/python -m release test --python $(PYTHON) -- $(SELECTION)

test-lowest: dist  ## the same with the oldest versions of what Inlay asks for; PYTHON chooses another Python
	$(BIN)/python -m release test --python $(PYTHON) --resolution lowest-direct -- -W ignore::DeprecationWarning $(SELECTION)

extras: $(STAMP)  ## say which extras resolve on which Python
	$(BIN)/python -m release extras

lint: $(STAMP)  ## ruff, mypy, import contracts, the layout of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_layout.py

format: $(STAMP)  ## put the code into ruff's form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## measure, or go on measuring; tables go to benchmarks/out
	$(BIN)/python -m benchmarks $(ARGS)

layout: $(STAMP)  ## write docs/layout.md from the docstrings and imports of the source
	$(BIN)/python -m tests.support.layout

surface: $(STAMP)  ## write docs/surface.txt, what users may rely on
	$(BIN)/python -m tests.support.surface

core: $(STAMP)  ## count the lines that every run needs, and those of the wings that join it
	$(BIN)/python -m tests.support.core

docs: $(STAMP)  ## build the documentation into site
	$(BIN)/sphinx-build -q -W -b html docs site

changelog: $(STAMP)  ## show what the next release will say
	$(BIN)/python -m release notes $(or $(VERSION),0.0.0)

release: $(STAMP)  ## say whether VERSION=1.2.3 can be released, and its notes; TAG=1 makes the commit and the tag
	$(BIN)/python -m release check $(or $(VERSION),$(error name it: make release VERSION=1.2.3))
ifdef TAG
	$(MAKE) lint test dist test-wheel
	$(BIN)/python -m release tag $(VERSION)
endif

lock: $(STAMP)  ## resolve the dependencies anew
	echo uv | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
	  --python-version 3.10 - -o $(INSTALLER)
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-strip-extras --no-emit-index-url --no-header \
	  --python-version 3.10 pyproject.toml --extra dev --extra images --extra bench --extra docs --extra arm --extra openvino -o $(LOCK)
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-strip-extras --no-emit-index-url --no-header \
	  --python-version 3.10 pyproject.toml --extra mcp --extra datasets -c $(LOCK) -o $(ADAPTERS)

clean:  ## remove everything that was made
	rm -rf $(VENV) out site build dist benchmarks/out
