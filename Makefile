# Every target sets up what it needs: Python >= 3.11, make and git are enough.
SHELL := /bin/sh
VENV ?= .venv
MODEL ?= smollm2
FUZZ_SECONDS ?= 60

# The first Python that is recent enough and really runs (a version manager's shim may exist and fail).
find_python = for p in python3 python3.13 python3.12 python3.11 python3.14; do \
  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done
PYTHON ?= $(shell $(find_python))

# Plugins that are compiled when they are installed, or require one; without a C++ compiler they are left out.
NEEDS_COMPILER := cpu_backend all
compiler := $(shell for c in c++ g++ clang++; do "$$c" --version >/dev/null 2>&1 && echo "$$c" && break; done)
all_plugins := $(patsubst plugins/%/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
left_out := $(if $(compiler),,$(filter $(NEEDS_COMPILER),$(all_plugins)))
plugins := $(filter-out $(left_out),$(all_plugins))

# Another stamp when plugins are left out, so that a compiler installed later is noticed.
installed := $(VENV)/.installed$(if $(left_out),-without-compiler)
python := $(VENV)/bin/python
pytest := $(python) -m pytest -n auto --dist loadfile $(addprefix --ignore=plugins/,$(left_out))
typed := $(patsubst %/__init__.py,%,$(wildcard squish_core/__init__.py plugins/*/src/*/__init__.py \
  tests/oracles/__init__.py benchmarks/__init__.py)) $(wildcard docs/_pages/*.py examples/*.py tests/wheels/*.py tests/cross/build.py tests/selection.py)
failed = { echo "make: could not install the packages. See above: either no package index can be reached, or a plugin" >&2; \
  echo "make: cannot be compiled here ('make compiler=' leaves out what is compiled: $(NEEDS_COMPILER))." >&2; exit 1; }
offline = { echo "make: could not install uv; is the network (a package index) reachable? See above." >&2; exit 1; }

.PHONY: help env check demo test oracles peers engines system fuzz sanitize cross bench lint wheels site docs screenshots clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

env: $(installed)  ## set up .venv with the core, every plugin and the developers' tools

native := $(wildcard plugins/*/CMakeLists.txt plugins/*/native/*)

$(installed): pyproject.toml constraints.txt $(all_plugins:%=plugins/%/pyproject.toml) $(native)
	@test -x $(python) || test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(python) || "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) does not run or is older than Python 3.11" >&2; exit 1; }
	@test -x $(python) || "$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "make: $(PYTHON) cannot make a virtual environment; on Debian: apt install python3-venv" >&2; exit 1; }
	@test -x $(VENV)/bin/uv || $(python) -m pip install --quiet --disable-pip-version-check -c constraints.txt uv || $(offline)
	@test -z "$(left_out)" || echo "make: no C++ compiler found (c++, g++, clang++), so left out: $(left_out)"
	@$(python) -m tests --requirements $(left_out) > $(VENV)/requirements.txt
	@$(VENV)/bin/uv pip install --quiet --no-sources --python $(python) -c constraints.txt -b constraints.txt \
	  --overrides without-torch.txt -r $(VENV)/requirements.txt || $(failed)
	@touch $@

demo: $(installed)  ## run the example on a small model (MODEL=smollm2 or gemma; TORCH=1 lets it speak)
	$(python) examples/demo.py --model $(MODEL) $(if $(TORCH),--torch)

check: $(installed)  ## while working: lint, and the tests that the change since the merge base reaches
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .
	$(pytest) -q tests/lint $$($(python) tests/selection.py) -m "not oracle and not fuzz and not system"

test: $(installed)  ## run the tests that need nothing else
	$(python) -m tests

# In the order of the files: those with the fewest tests take the longest, and would come last.
oracles: $(installed)  ## compare with the peer packages, each in a process of its own
	$(pytest) --no-loadscope-reorder -m oracle

peers: $(installed)  ## of these, a fixed set that covers every peer package
	$(pytest) --no-loadscope-reorder -m peers $$(grep -rl mark.peers tests plugins --include='test_*.py')

engines: $(installed)  ## convert whole models, run them in other software, and write the table of docs/models.md (FAMILY="llama qwen3")
	PYTHONPATH=tests:examples $(python) -m oracles.table --write $(if $(FAMILY),--family $(FAMILY))

system: $(installed)  ## drive bash, zsh and fish through a terminal, and let mandoc check the man pages
	@for each in bash zsh fish mandoc; do command -v $$each >/dev/null || \
	  echo "make: $$each is not installed, so what needs it is left out" >&2; done
	$(pytest) -q -m system

fuzz: $(installed)  ## run the long mutation tests, damaged files through every writer, and atheris (FUZZ_SECONDS=60 each)
	$(pytest) -m fuzz
	$(python) fuzz/writeback.py --seconds $(FUZZ_SECONDS)
	@$(VENV)/bin/uv pip install --quiet --python $(python) atheris 2>/dev/null && $(python) fuzz/run.py --seconds $(FUZZ_SECONDS) || \
	  { $(python) -c 'import atheris' 2>/dev/null && exit 1 || echo "make: atheris has no build for this Python and system; left out" >&2; }

sanitize: $(installed)  ## run the compiled plugin's tests under AddressSanitizer and UndefinedBehaviorSanitizer
	cmake="$(VENV)/bin/uv tool run --quiet cmake" && \
	$$cmake -S plugins/cpu_backend -B build/sanitize -DSANITIZE=address,undefined >/dev/null && \
	$$cmake --build build/sanitize --parallel >/dev/null && \
	env SQUISH_CPU_LIBRARY=build/sanitize/libsquish_cpu.so ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$($(compiler) -print-file-name=libasan.so) $$($(compiler) -print-file-name=libubsan.so)" \
	  $(pytest) -q $(addprefix plugins/cpu_backend/tests/test_cpu_,values.py int8.py panels.py byte_panels.py encoders.py encode_affine.py encode_triple.py statistics.py) -m "not oracle"

cross: $(installed)  ## compile the kernels for Windows and aarch64, and run their tests under qemu
	@for each in x86_64-w64-mingw32-g++-posix aarch64-linux-gnu-g++ qemu-aarch64; do command -v $$each >/dev/null || \
	  echo "make: $$each is not installed, so what needs it is left out" >&2; done
	@! command -v x86_64-w64-mingw32-g++-posix >/dev/null || $(python) tests/cross/build.py windows
	@! { command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64; } >/dev/null || $(python) tests/cross/build.py aarch64

bench: $(installed)  ## run the benchmarks
	$(python) -m benchmarks

lint: $(installed)  ## check style, formatting and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy $(typed)

wheels: $(installed)  ## build every wheel and try it alone, with the tests marked `alone` (WHOLE=1: with all of its tests)
	$(python) tests/wheels/check.py $(if $(WHOLE),--whole) $(plugins)

documented := $(VENV)/.documented

$(documented): $(installed)
	@$(VENV)/bin/uv pip install --quiet --python $(python) -c constraints.txt --group docs || $(failed)
	@touch $@

site: $(documented)  ## build the documentation into build/site, and check its links
	$(python) -m sphinx -n -W --keep-going -q -j auto -b html -d build/doctrees docs build/site
	$(python) docs/_pages/links.py build/site

docs: site  ## the same, and run the snippets of README, start/ and howto/
	$(pytest) -q tests/cli/test_documented_examples.py tests/cli/test_pages.py -m "not oracle"

screenshots: site  ## take pictures of the site with a headless Chromium, into build/screenshots
	$(python) docs/_pages/screenshots.py build/site build/screenshots

clean:  ## remove the environments and everything built
	rm -rf $(VENV) .oracles build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
