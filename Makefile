# rabbit-chx: every target installs what it needs into .venv in this folder; nothing needs to be activated.
#   make test PYTHON=python3.12     use this Python (3.11 or later) instead of the first one found
#   make test APT=no                never install Debian packages (python3-venv, rabbitmq-server, Java, Chromium, Prometheus)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-all long lint unit integration newest broker spark faults cluster proof oldest oldest-spark matrix bench site reference constraints audit dist clean

# Tests start Python hundreds of times, which takes three times as long without compiled modules.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# Several tests run at a time (tests/parallel.py); one at a time where they share a broker:  make test WORKERS=0
WORKERS ?= $(if $(RABBIT_CHX_BROKER_URL),0,auto)
INTEGRATION := tests/broker tests/spark tests/faults tests/cluster
LANES := -n $(WORKERS)
# What decides whether a change may land: failed tests run once more, alone (tests/second_try.py).
GATE := $(LANES) --second-try
# The files of unit tests with long tests: to import all others takes each worker half a minute.
LONG_UNITS = $(shell grep -lrE --include='test_*.py' 'mark\.(long|broker|spark|newest_first)' tests/unit tests/property)
CANDIDATES := $(or $(PYTHON),python3.14 python3.13 python3.12 python3.11 python3)

# Run scripts/bootstrap.py with the first candidate that is a complete Python 3.11 or later: tomllib came with
# 3.11, and some systems package venv separately.
define bootstrap
@for python in $(CANDIDATES); do \
  if "$$python" -c 'import shutil, tomllib, venv' 2>/dev/null; then \
    exec "$$python" scripts/bootstrap.py $(1); \
  fi; \
done; \
echo "rabbit-chx needs Python 3.11 or later, and none of these is one: $(CANDIDATES)." >&2; \
echo "Install it (Debian 12, Ubuntu 24.04: apt install python3), or name one: make PYTHON=/path/to/it" >&2; \
exit 1
endef

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r target what; do \
	  printf '  make %-12s %s\n' "$$target" "$$what"; \
	done

demo: .venv/.demo ## predict, publish to a throw-away broker, compare; then the same from Spark
	@$(BIN)/rabbit-chx demo --part offline
	$(call bootstrap,broker)
	@$(BIN)/rabbit-chx demo --part broker
	@$(MAKE) --silent --no-print-directory .venv/.spark
	$(call bootstrap,java)
	@$(BIN)/rabbit-chx demo --part spark

test: lint unit integration ## lint, types and tests on real brokers and a real Spark (about 10 minutes)

test-all: lint unit long oldest oldest-spark site ## all tests: make test, and what it leaves out

unit: .venv/.test ## the tests that need no broker (2 to 4 minutes)
	@$(BIN)/python -m pytest $(GATE) -m "not long" tests/unit tests/property

integration: .venv/.test ## the tests on real brokers and a real Spark
	$(call bootstrap,broker)
	$(call bootstrap,java)
	@$(BIN)/python -m pytest $(GATE) -m "not long" --durations 20 $(INTEGRATION)

# The clients from npm are no tests of a broker, since they may be skipped.
long: .venv/.test .venv/spark.jsa ## make integration, and the long tests that make test leaves out (LONG_PART=1/3: a third of them)
	$(call bootstrap,broker)
	$(call bootstrap,java)
	$(call bootstrap,watch)
	@$(BIN)/python -m pytest $(GATE) $(if $(LONG_PART),--long-part $(LONG_PART)) -m "not proof and (long or broker or spark or newest_first)" --durations 300 --durations-min 8 $(INTEGRATION) $(LONG_UNITS)

lint: .venv/.test ## check style and types
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/basedpyright --pythonpath $(BIN)/python --project tests/typing & \
	$(BIN)/mypy rabbit_chx spark_connector pyspark_rabbitmq scripts tests/typing; code=$$?; wait $$! && exit $$code

# Computations, and checks of sources and of this suite, come out the same on each Python, and take half of the time.
SAME := $(patsubst %,tests/unit/topology/test_%.py,ring_paths plan plan_file what_if change_records load_problems) \
  $(patsubst %,tests/unit/test_%.py,second_try leaks canary architecture streams_hostile_entries report pictures advice cli_scale_others)

newest: .venv/.test ## the unit tests on the newest supported Python that this machine has
	$(call bootstrap,newest)
	@if [ -d .venv/newest ]; then \
	  .venv/newest/bin/python -m pytest $(GATE) -m "not long" tests/unit $(addprefix --ignore=,$(SAME)); \
	fi

broker: .venv/.test ## the tests against real brokers
	$(call bootstrap,broker)
	@$(BIN)/python -m pytest $(LANES) tests/broker

spark: .venv/.test ## the tests that start a Spark
	$(call bootstrap,broker)
	$(call bootstrap,java)
	@$(BIN)/python -m pytest $(LANES) tests/spark

faults: .venv/.test ## the tests that inject faults into brokers and connections
	$(call bootstrap,broker)
	$(call bootstrap,java)
	@$(BIN)/python -m pytest $(LANES) tests/faults

cluster: .venv/.test ## the tests that inject faults into a cluster of three nodes
	$(call bootstrap,broker)
	$(call bootstrap,java)
	@$(BIN)/python -m pytest tests/cluster

# All tests on real brokers and a real Spark, with every round and release that they have. For docs/proof.md and docs/proof-results.md.
PROOF := $(INTEGRATION) tests/unit/test_cli_sigterm.py $(patsubst %,tests/property/test_%.py,diff_laws hostile_input received_laws stream_parking_laws)

proof: .venv/.test .venv/spark.jsa ## all faults and comparisons, long; writes docs/proof-results.md (RABBIT_CHX_SEED repeats a run)
	$(call bootstrap,broker)
	$(call bootstrap,java)
	@RABBIT_CHX_PROOF=long $(BIN)/python -m pytest $(LANES) --proof docs/proof.md $(PROOF)

oldest: .venv/.test ## the publisher's tests on the oldest supported pika
	$(call bootstrap,oldest-pika)
	$(call bootstrap,broker)
	@PYTHONPATH=.venv/oldest-pika RABBIT_CHX_TEST_RELEASES=4.3 RABBIT_CHX_SMOKE_RELEASES=4.3 $(BIN)/python -m pytest $(GATE) \
	  tests/unit/test_publishing_*.py tests/broker/test_publish_command.py tests/faults/test_without_fast_path.py \
	  tests/faults/test_broker_faults.py -k "not classic"

# The connector's own tests, which older releases of PySpark pass too.
SPARK_TESTS := tests/unit/spark tests/broker/test_spark_*.py $(patsubst %,tests/spark/test_%.py, \
  batch_write stream_write write_to_streams read_streams read_micro_batches read_queue filters guide split_valid order queue_of \
  spread doctor_spark connect secrets)

# pytest in the environment of an older PySpark, $(1), on one RabbitMQ, $(2). Up to 4.1, PySpark leaves its sockets to
# the garbage collector, which warns.
define on_pyspark
RABBIT_CHX_TEST_RELEASES=$(2) .venv/pyspark-$(1)/bin/python -m pytest $(GATE) --rabbitmq-release $(2) \
  $(if $(filter 4.0% 4.1,$(1)),-W ignore::ResourceWarning)
endef

# The tests of make test, without those that need pandas or real executors, or that write many rows.
oldest-spark: .venv/pyspark-4.0/.ready ## the Spark connector on PySpark 4.0, the oldest pyarrow and RabbitMQ 3.10
	$(call bootstrap,broker)
	$(call bootstrap,java)
	@$(call on_pyspark,4.0,3.10) -m "not long" $(filter-out %/test_connect.py %/test_secrets.py,$(SPARK_TESTS)) \
	  -k 'not (many_rows or executors)'

matrix: $(patsubst %,.venv/pyspark-%/.ready,4.0-pandas 4.1 4.2) ## the Spark connector on PySpark 4.0, 4.1 and 4.2
	$(call bootstrap,broker)
	$(call bootstrap,java)
	@$(call on_pyspark,4.0-pandas,4.0) $(SPARK_TESTS)
	@$(call on_pyspark,4.1,4.0) $(SPARK_TESTS)
	@$(call on_pyspark,4.1,4.3) $(SPARK_TESTS)
	@$(call on_pyspark,4.2,4.0) $(SPARK_TESTS)
	@$(call on_pyspark,4.2,4.3) $(SPARK_TESTS)

bench: .venv/.test ## run the benchmarks, which print ratios
	@for program in benchmarks/*.py; do $(BIN)/python "$$program" || exit; done

site: .venv/docs/.ready .venv/.test ## build the documentation in build/site; a broken link is an error
	@rm -rf build/site build/doctrees
	@PYTHONPATH=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	  .venv/docs/bin/python -m sphinx --quiet --fail-on-warning --doctree-dir build/doctrees --conf-dir docs . build/site

reference: .venv/.test ## write the pages and tables of docs/ that come from code
	@$(BIN)/python scripts/reference.py
	@$(BIN)/python scripts/tables.py

constraints: ## pin the newest versions and the hashes of their files
	$(call bootstrap,constraints)

audit: .venv/audit/.ready ## look up known vulnerabilities of the pinned versions
	@.venv/audit/bin/python scripts/audit.py

dist: .venv/.demo ## build the wheel, with its bill of materials, and the source archive
	@rm -rf dist
	@$(BIN)/python -m hatchling build
	@$(BIN)/python -m pip hash dist/*

clean: ## remove the environment and every cache
	@rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps record what is installed. They are ignored if PYTHON is given, if the environment's Python does not
# run, or if the folder was moved or copied, since an environment contains its own path.
VENV_FOLDER := $(if $(PYTHON),,$(shell { $(BIN)/python -SIc 0 && cat .venv/.folder; } 2>/dev/null))
ifneq ($(VENV_FOLDER),$(CURDIR))
.PHONY: .venv/.demo .venv/.spark .venv/.test
endif

PINNED := $(addprefix scripts/,bootstrap.py environment.py pins.py) pyproject.toml constraints.txt hashes.txt

.venv/.demo: $(PINNED)
	$(call bootstrap,demo)
	@touch $@

.venv/.spark: $(PINNED)
	$(call bootstrap,spark)
	@touch $@

.venv/pyspark-%/.ready: .venv/.test
	$(call bootstrap,pyspark $*)
	@touch $@

# The classes of Spark, which spare each Java of the tests a third of its start (tests/spark/__init__.py).
.venv/spark.jsa: .venv/.test
	$(call bootstrap,java)
	-@$(BIN)/python -m tests.spark.class_archive $@

.venv/audit/.ready .venv/docs/.ready: .venv/%/.ready: $(PINNED) | .venv/.demo
	$(call bootstrap,$*)
	@touch $@

.venv/.test: $(PINNED)
	$(call bootstrap,test)
	@touch .venv/.demo .venv/.spark $@
