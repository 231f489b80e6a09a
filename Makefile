# Every target sets up `.venv` from requirements.lock by itself, and says what it does.
# A missing tool that make cannot install is named together with the command that installs it.

VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# The first interpreter that is new enough, the locked one first; `make PYTHON=/path/to/python3` overrides it.
PYTHON ?= $(firstword $(foreach p,python3.11 python3 python3.12 python3.13 python3.14,\
            $(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(p))))
# More arguments for pytest: `make test ARGS="tests/test_client.py -k adoption -x"`.
ARGS   ?=
# So many tests run at a time: most of them wait, for a broker, a lease or a process that starts.
WORKERS ?= 5

# The Java that Spark would start, if it is new enough.
JAVA_17 = { "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 \
            | sed -n 's/.*version "\([0-9]*\).*/\1/p' | { read -r v && [ "$$v" -ge 17 ]; }; } 2>/dev/null

.DEFAULT_GOAL := help
.PHONY: help demo brokers test test-fast test-all check format docs bench drills java lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): requirements.lock pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
	  echo "SteadyWorker needs Python 3.11 or newer, and none was found: apt-get install python3 python3-venv (Debian 12 and newer), or brew install python@3.11" >&2; exit 1; fi
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: apt-get install python3-venv (or the python3.x-venv of your version)" >&2; exit 1; }
	@echo "==> $(VENV): the versions of requirements.lock, for $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

java: ## Find Java 17 or newer for Spark, or install it where that is possible (root and apt)
	@if $(JAVA_17); then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "==> Java 17 or newer was not found: installing it with apt-get"; \
	  { apt-get -qq update && { \
	      DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends openjdk-17-jre-headless \
	      || DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends default-jre-headless; }; } >/dev/null; \
	fi; \
	if ! $(JAVA_17); then \
	  echo "Java 17 or newer is missing, so all but Spark will run: sudo apt-get install openjdk-17-jre-headless, or brew install openjdk@17 (then set JAVA_HOME)" >&2; fi

demo: $(READY) java ## Payment exports from message to file, with crashes on the way: what this does that others do not (STORE=s3: one more into a bucket)
	@echo "==> demo: examples/demo.py"
	@$(BIN)/python examples/demo.py $(if $(BROKER),--broker '$(BROKER)') $(if $(STORE),--store '$(STORE)')

brokers: $(READY) ## Start the brokers of the tests, print their URLs, and stop them at Ctrl-C (NAMES="rabbitmq-4.3 activemq artemis rocketmq-5.4")
	@$(BIN)/python -m tests.brokers $(NAMES)

# What Java takes to compile well is lost on a Spark that lives for seconds: half of its work.
BRIEF_JAVA = JAVA_TOOL_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Spark's tests come after the others; those of `make test-all` one at a time, with the Java that users have.
# To collect all of tests/ for them would take half a minute in each process.
SPARK_TESTS = $(if $(findstring tests/,$(ARGS)),,tests/deploy tests/examples tests/exports)
# What failed is tried again by itself; tests/again.py says when that forgives it.
test: $(READY) java ## The tests, but those marked slow
	@echo "==> tests, $(WORKERS) at a time"
	@$(BIN)/python -m tests.again -n $(WORKERS) --dist loadgroup -m "not slow and not spark" $(ARGS)
	@echo "==> tests of Spark exports, two at a time"
	@$(BRIEF_JAVA) $(BIN)/python -m tests.again -n 2 --dist loadgroup -m "not slow and spark" $(SPARK_TESTS) $(ARGS)

test-fast: $(READY) ## What one runs at every save: no broker, no Spark, no worker process, under a minute
	@echo "==> the quick tests"
	@$(BIN)/python -m tests.again -n 4 --dist loadgroup \
	  -m "not (slow or long or spark or rabbitmq or stomp or rocketmq or postgres or s3 or processes)" $(ARGS)

test-all: $(READY) java ## All tests, the slow ones too, on every version of the brokers
	@echo "==> all tests, $(WORKERS) at a time"
	@$(BIN)/python -m tests.again -n $(WORKERS) --dist loadgroup --all-brokers -m "not spark" $(ARGS)
	@echo "==> all tests of Spark exports, one at a time"
	@$(BIN)/python -m tests.again -m "spark" $(SPARK_TESTS) $(ARGS)

check: $(READY) ## Format, lint and types, as CI judges them
	@echo "==> ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "==> ruff check"
	@$(BIN)/ruff check .
	@echo "==> mypy --strict"
	@$(BIN)/mypy
	@echo "==> pyright"
	@$(BIN)/pyright

format: $(READY) ## Format the code and apply the lint fixes that are safe
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

docs: $(READY) ## The reference as HTML, in build/docs, from the docstrings
	@echo "==> docs: tests/docs/build.py"
	@$(BIN)/python -m tests.docs.build

bench: $(READY) $(if $(filter --cost --start --no-spark,$(ARGS))$(filter-out spark --%,$(firstword $(ARGS))),,java) ## The benchmarks: ratios measured in one run (ARGS="spark 3M" or another name of tests/benchmarks/bench_*.py for one; --cost, --start)
	@echo "==> benchmarks: tests/benchmarks/run.py"
	@$(BIN)/python tests/benchmarks/run.py $(ARGS)

drills: $(READY) ## Eight drills on RabbitMQ, five of them on ActiveMQ and RocketMQ, we beside Celery and others (an hour; ONLY=steadyworker takes half of it)
	@echo "==> drills: tests/drills"
	@$(BIN)/python -m tests.drills $(if $(ONLY),--only $(ONLY)) $(ARGS)

lock: $(READY) ## Remake requirements.lock (takes minutes: every file of every version is hashed)
	@echo "==> requirements.lock, from pyproject.toml; ARGS=--upgrade for the newest versions"
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' \
	  | env -u PIP_FIND_LINKS $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	    --extra spark --extra spark-connect --output-file requirements.lock pyproject.toml - $(ARGS)
	@$(BIN)/python deploy/container/lock.py

clean: ## Remove the environment, the caches and what was built
	@rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find steadyworker adapters tests examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
