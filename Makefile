# Every target does its own set-up: on a fresh machine `make demo` or `make test` is all that is needed.
VENV ?= .venv
export STORMPROOF_VENV = $(VENV)
PY = $(VENV)/bin/python

RUNS ?= runs/brokers
BROKERS ?= activemq artemis broker-j etcd joram-real kafka mosquitto nats rabbitmq redis zookeeper
BY_etcd = --by holders --by refuse_old_tokens
BY_nats = --by disk_files

READ = README.md ARCHITECTURE.md CONTRIBUTING.md checkers harness nemesis nodes reports scripts stormproof workloads

.PHONY: help setup demo vagrant-demo test test-brokers lint wheel bench faults soak reproduce brokers broker-pages requirements docs lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## virtual environment, Java, system packages
	@scripts/setup demo

demo: setup ## split a broker twice: once unsafely (invalid), once safely (valid), with reports
	@$(PY) -m harness demo

vagrant-demo: setup ## the demo on machines that Vagrant makes (docs/backends.md); ARGS="--provider docker --keep"
	@$(PY) -m harness.tools.vagrant $(ARGS)

test: ## set-up, ruff, mypy, and all tests
	@scripts/setup test
	@$(MAKE) --no-print-directory lint
	@$(PY) -m pytest -n auto --maxprocesses 4

test-brokers: ## tests on real brokers that need more than PyPI and Debian: RabbitMQ, Kafka, clients in Go and Java
	@scripts/setup brokers
	@$(PY) -m pytest tests/brokers -n auto --maxprocesses 2 -rs $(TESTS)

lint: ## ruff, mypy (strict), and the share of odd sentences
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@cd checkers/porcupine-py && $(abspath $(PY)) -m mypy
	@found=$$($(PY) scripts/prose --limit 2 $(READ)) || { echo "$$found" | tail -n 20; exit 1; }

wheel: setup ## both distributions, stormproof and porcupine-py, in dist/
	@rm -rf build checkers/porcupine-py/build # else modules that were removed would come along
	@$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . checkers/porcupine-py
	@ls dist

bench: setup ## figures of docs/reference/benchmarks.md, measured on this machine
	@$(PY) -m harness.tools.bench

faults: setup ## table of faults and backends, by runs of each (half an hour); then make docs
	@$(PY) -m harness.tools.fault_table

soak: ## slow tests: many seeds, many histories (hours); those that need a quiet machine come last, one by one
	@scripts/setup test
	@status=0; export STORMPROOF_RECORD=$(abspath docs/outcomes.json) HYPOTHESIS_PROFILE=default; \
	$(PY) -m pytest -m "soak and not alone" -n auto --maxprocesses 4 --timeout 3600 --durations 30 || status=1; \
	$(PY) -m pytest -m "soak and alone" --timeout 3600 || status=1; \
	(cd checkers/porcupine-py && $(abspath $(PY)) -m pytest -m soak --timeout 3600) || status=1; \
	exit $$status

reproduce: setup ## published misbehaviours of real systems, five times each, and their twins
	@$(VENV)/bin/stormproof reproduce --all --times 5 --record

brokers: setup ## pages of docs/brokers: the reproductions, and each broker's defaults under each fault (hours)
	@$(VENV)/bin/stormproof reproduce --all --times 5 --store $(RUNS) || [ $$? -lt 3 ]
	@$(VENV)/bin/stormproof nightly docs/brokers/night.toml --store $(RUNS) || [ $$? -lt 3 ]
	@$(MAKE) --no-print-directory broker-pages

broker-pages: setup $(BROKERS:%=page-%) ## the same pages from runs that are there

page-%:
	@$(VENV)/bin/stormproof guarantees --system $* --store $(RUNS) $(BY_$*) --page docs/brokers/$*.md || [ $$? = 1 ]

requirements: ## rows of docs/REQUIREMENTS.md and the tests that prove them, with their last outcome
	@scripts/setup test
	@$(PY) scripts/requirements.py

docs: setup ## make the generated pages of docs/ again
	@$(PY) scripts/generate_docs.py

lock: setup ## resolve the dependencies again
	@scripts/lock

clean: ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
