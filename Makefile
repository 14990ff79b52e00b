# Needs Python 3.11 or newer, a C toolchain and a package index; everything else is set up here.
#
#   make demo      one reply of the bundled model: plan, text, numbers
#   make test      style, types and every test that is not slow and needs no emulator
#   make test-slow the tests that are (memory promises in whole processes, training): minutes
#   make test-arm  the kernels for ARM in an emulator: needs gcc-aarch64-linux-gnu and qemu-user;
#                  and the command line under a Python for ARM, where `make arm-python` made one
#   make test-arm-full  what compiles nothing of the fast tests, under that Python: an hour
#   make wheels    wheels for Linux with precompiled kernels, and one for all, each with what it is
#                  made of (CycloneDX): minutes
#   make lock      choose the versions anew that LOCKED=1 installs by their hashes
#   make parity    compare with llama.cpp, and test it as a backend; built from source (minutes)
#   make fuzz      look for inputs that crash a reader, for MINUTES (60) in all; needs Atheris (Linux, macOS)
#   make real-models  measure published models beside llama.cpp: downloads them from a hub (hours)

.DEFAULT_GOAL := demo
.PHONY: lock fuzz demo test test-slow test-arm arm-python test-arm-full wheels parity
.PHONY: real-models lint clean
.DELETE_ON_ERROR:

VENV ?= .venv
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

unexport PYTHONPATH
unexport PYTHONHOME

# Files of tests shared out among processes.
SHARED_OUT := --numprocesses auto --maxprocesses 4 --dist loadfile

# What tests compile stays in the checkout.
TEST_CACHE := EDGESPEC_CACHE="$(CURDIR)/build/cache"

# A mark beside the wheel; `make build/llama/built` builds it ahead of `make parity`.
LLAMA_WHEEL := build/llama/built

# What `make fuzz` reads, and for how long in all.
TARGET ?= all
MINUTES ?= 60

# Spec-Bench's questions for `make real-models`; RUN adds arguments, as in RUN='--only qwen3 --delete'.
QUESTIONS ?= build/spec_bench.jsonl
QUESTIONS_URL := https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl

demo: $(VENV)/installed
	@echo; echo "edgespec plan"
	@$(BIN)/edgespec plan
	@echo; echo "edgespec run --seed 1 'Tell me a short story about a dog.'"
	@echo "(the first start compiles for this processor, which takes some seconds once)"; echo
	@$(BIN)/edgespec run --seed 1 --stats "Tell me a short story about a dog." </dev/null

test: lint
	$(TEST_CACHE) $(BIN)/python -m pytest -m "not slow" $(SHARED_OUT) \
		--ignore-glob 'tests/backends/test_arm*.py'

test-slow: $(VENV)/dev
	$(TEST_CACHE) $(BIN)/python -m pytest -rs -m slow $(SHARED_OUT) --ignore tests/parity

lint: $(VENV)/dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

test-arm: $(VENV)/dev
	$(TEST_CACHE) $(BIN)/python -m pytest -rs tests/backends/test_arm*.py

# Debian's Python for ARM and a wheel of this checkout, in build/arm64: needs apt-get, but not root.
arm-python: $(VENV)/dev
	$(BIN)/python -m tests.support.arm_python build

test-arm-full: arm-python
	$(BIN)/python -m tests.support.arm_python test

wheels: $(VENV)/dev
	for platform in linux-x86_64 linux-aarch64; do \
		library=build/precompiled/$$platform/_kernels.abi3.so; \
		$(BIN)/python -m edgespec.system.precompile --platform $$platform --output $$library && \
		EDGESPEC_PLATFORM=$$platform EDGESPEC_LIBRARY=$$library \
			$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . || exit 1; \
	done
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python -m lab.sbom dist/*.whl

# What LOCKED=1 installs for development: these versions, and no file without one of these hashes.
lock: $(VENV)/installed
	$(PIP) uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
		--generate-hashes --no-annotate --no-header --no-emit-index-url --upgrade --quiet \
		--output-file requirements-dev.lock

fuzz: $(VENV)/fuzz
	$(TEST_CACHE) $(BIN)/python -m lab.fuzz $(TARGET) --minutes $(MINUTES)

parity: $(VENV)/llama
	$(TEST_CACHE) $(BIN)/python -m pytest -rs $(SHARED_OUT) tests/parity
	$(TEST_CACHE) $(BIN)/python -m pytest -rs $(SHARED_OUT) -k llamacpp tests/conformance tests/backends

real-models: $(VENV)/llama $(QUESTIONS)
	$(TEST_CACHE) $(BIN)/python -m lab.real_models run --questions "$(QUESTIONS)" $(RUN)

build/spec_bench.jsonl: | $(VENV)/installed
	@mkdir -p $(@D)
	$(BIN)/python -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' \
		$(QUESTIONS_URL) $@

$(VENV)/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(if $(LOCKED),$(PIP) --require-hashes --requirement requirements-dev.lock)
	$(PIP) --editable .
	@touch $@

$(VENV)/dev: $(VENV)/installed
	$(PIP) --editable '.[dev]'
	@touch $@

# llama.cpp built for a processor with AMX crashes where the kernel does not grant its tiles, so
# they are left out where the compiler knows them. Built from source: a ready wheel may hold them.
# So is what llama.cpp's programs and images need: the larger half, which nothing here uses.
NO_AMX = $(shell echo 'int x;' | $${CC:-cc} -mno-amx-tile -mno-amx-int8 -mno-amx-bf16 -x c -c - \
	-o /dev/null 2>/dev/null && echo -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)

$(LLAMA_WHEEL): $(VENV)/dev
	rm -rf $(@D)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps \
		--no-binary llama-cpp-python --dest $(@D) 'llama-cpp-python>=0.3.36'
	tar -xzf $(@D)/llama_cpp_python-*.tar.gz -C $(@D) --strip-components=1
	sed -i.orig 's/LLAMA_BUILD_COMMON ON/LLAMA_BUILD_COMMON OFF/' $(@D)/CMakeLists.txt
	CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_RPC=ON -DLLAVA_BUILD=OFF" \
		CFLAGS="$(NO_AMX)" CXXFLAGS="$(NO_AMX)" \
		$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-cache-dir --no-deps \
		--wheel-dir $(@D) $(@D)
	@touch $@

$(VENV)/llama: $(LLAMA_WHEEL)
	$(PIP) $(dir $(LLAMA_WHEEL))*.whl --editable '.[dev,llamacpp]'
	@touch $@

$(VENV)/fuzz: $(VENV)/dev
	$(PIP) atheris
	@touch $@

clean:
	rm -rf $(VENV) build dist
