# Every habit is one command. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := .tools/bin/uv
STAMP := $(VENV)/.synced

# Images set it. A run of the tests starts hundreds of processes, and each would compile what it
# imports, and each process of pytest all test files, for itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: prerequisites
prerequisites:
	@$(PYTHON) infra/prerequisites.py

$(UV): requirements-bootstrap.lock
	@$(MAKE) --no-print-directory prerequisites
	@$(PYTHON) -m venv .tools
	@.tools/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bootstrap.lock
	@touch $@

WIRE := wire/target/release/libtideline_wire.so

$(WIRE): wire/Cargo.toml wire/Cargo.lock $(wildcard wire/src/*.rs)
	@cargo build --quiet --release --locked --offline --manifest-path wire/Cargo.toml
	@touch $@

$(STAMP): $(UV) $(WIRE) requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: setup
setup: $(STAMP) ## the Python environment, from the hash-locked requirements

COMPILE := $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header

.PHONY: lock
lock: $(UV) ## pin the requirements anew, and those of each image out of them (names no registry host)
	@$(COMPILE) --all-extras --group dev pyproject.toml -o requirements.lock
	@$(COMPILE) --constraint requirements.lock pyproject.toml -o infra/images/service.lock
	@$(COMPILE) --constraint requirements.lock --extra jobs pyproject.toml -o infra/images/jobs.lock
	@$(COMPILE) infra/images/checks.in -o infra/images/checks.lock

.PHONY: lint
lint: $(STAMP) lint-wire ## ruff, strict type checking, who may import what, rustfmt and clippy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

# Rust may be there without one of them, as Debian packages it.
.PHONY: lint-wire
lint-wire:
	@if cargo fmt --version >/dev/null 2>&1; then \
	    cargo fmt --check --manifest-path wire/Cargo.toml; \
	else echo "NOT LOOKED AT: how wire/ is formatted; cargo has no fmt here (Debian: apt-get install rustfmt)"; fi
	@if cargo clippy --version >/dev/null 2>&1; then \
	    cargo clippy --quiet --all-targets --locked --offline --manifest-path wire/Cargo.toml -- -D warnings; \
	else echo "NOT LOOKED AT: wire/ by clippy, which cargo has not here (Debian: apt-get install rust-clippy)"; fi

.PHONY: format
format: $(STAMP) ## let ruff and rustfmt format the tree
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@cargo fmt --manifest-path wire/Cargo.toml

.PHONY: up
up: $(STAMP) ## the embedded stack: Postgres, S3, Temporal, Kafka, gateways, worker
	@$(BIN)/tideline stack up

.PHONY: down
down: $(STAMP) ## stop it; no process stays
	@$(BIN)/tideline stack down

.PHONY: demo
demo: $(STAMP) ## the main job, with proof
	@$(BIN)/tideline demo $(DEMO_FLAGS)

.PHONY: rehearse
rehearse: $(STAMP) ## the demo, then Postgres is lost and rebuilt out of the bucket
	@$(BIN)/tideline demo --rehearse $(DEMO_FLAGS)

.PHONY: rehearse-install
rehearse-install: $(STAMP) ## the commands of docs/install.md, on an embedded stack with clients connected
	@$(BIN)/pytest tests/nightly/own_stack/test_install_page.py

.PHONY: demo-disable
demo-disable: $(STAMP) ## tiered storage is switched off and on again, and nothing is lost
	@$(BIN)/python -m tideline.demo.disable

.PHONY: demo-secure
demo-secure: $(STAMP) ## the main job under TLS, logins and rights, with proof
	@$(BIN)/tideline demo --secure $(DEMO_FLAGS)

.PHONY: demo-racks
demo-racks: $(STAMP) ## a broker and a whole rack are lost; what leaves a rack is counted
	@$(BIN)/python -m tideline.demo.racks $(DEMO_FLAGS)

.PHONY: airflow
airflow: $(STAMP) ## the embedded stack with Airflow, and one run of each DAG
	@$(BIN)/tideline stack up --airflow
	@$(BIN)/python -m tideline.demo.airflow_tour

# More processes than cores by those that have a stack, for they wait most of the time; four at most,
# for each has servers of its own (docs/decisions/0006-tests-side-by-side.md).
CORES := $(shell nproc 2>/dev/null || echo 2)
side_by_side = -n $(shell echo $$(( $(CORES) + $(1) < 4 ? $(CORES) + $(1) : 4 ))) --stacks $(1) --dist loadfile --no-loadscope-reorder

.PHONY: test
test: $(STAMP) ## what CI runs: all but tests/nightly, on one embedded stack
	@$(BIN)/pytest $(call side_by_side,1) $(PYTEST_FLAGS)

# A Go module: needs a Go toolchain and, the first time, some minutes. What it needs itself is held
# to its go.sum, which is part of what the hash is of.
TEMPORAL := go.temporal.io/server@v1.32.0
TEMPORAL_HASH := h1:JQoqsVREaGc8vcuDNfuRlySiV3tVi81XUOVC9LeL/1Y=
TEMPORAL_SERVER := .tools/temporal/server

$(TEMPORAL_SERVER): | $(UV)
	@got=$$(go mod download -json $(TEMPORAL)); \
	grep -qF '"$(TEMPORAL_HASH)"' <<<"$$got" || { echo "$(TEMPORAL) is not what it was: $$got" >&2; exit 1; }; \
	go -C "$$(sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p' <<<"$$got")" build -mod=readonly -ldflags='-s -w' \
	    -o $(CURDIR)/$(@D)/ ./cmd/tools/sql ./cmd/server

.PHONY: temporal-server
temporal-server: $(TEMPORAL_SERVER) ## Temporal's server for a Postgres of its own, and the tool that makes its schema

.PHONY: test-all
test-all: $(STAMP) $(TEMPORAL_SERVER) ## that and tests/nightly, where two processes have embedded stacks
	@$(BIN)/pytest tests $(call side_by_side,2) --hypothesis-profile "other examples" $(PYTEST_FLAGS)

.PHONY: test-release
test-release: $(STAMP) ## crossing, reads across B0, coverage and tiering on brokers of RELEASE=x.y.z (docs/stack.md)
	@TIDELINE_KAFKA_RELEASE=$(RELEASE) $(BIN)/pytest tests/nightly/own_stack/test_kafka_releases.py $(PYTEST_FLAGS)

.PHONY: test-unit
test-unit: $(STAMP) ## unit tests, model, simulation and pages, which start nothing: two minutes
	@$(BIN)/pytest tests/unit tests/history tests/simulation tests/model tests/pages $(call side_by_side,1) $(PYTEST_FLAGS)

.PHONY: model
model: $(STAMP) ## every interleaving of small scopes: states, seconds, and each hole as a schedule
	@$(BIN)/python -m tests.model

.PHONY: mutations
mutations: $(STAMP) ## plant each mutation of the source and print which test finds it (an hour; TABLE=FILE.toml: those of one table)
	@$(BIN)/python -m tests.nightly.mutations $(TABLE)

SEED := 1
RUNS := 50
JOBS := 1

.PHONY: simulate
simulate: $(STAMP) ## RUNS schedules of faults from SEED on, JOBS at once, on a virtual clock (docs/simulation.md)
	@$(BIN)/python -m tests.simulation --seed $(SEED) --runs $(RUNS) --jobs $(JOBS) $(SIMULATE_FLAGS)

.PHONY: simulate-power
simulate-power: $(STAMP) ## how many schedules it takes to see each planted bug (hours; POWER_FLAGS=--write records it)
	@$(BIN)/python -m tests.simulation.power --jobs $(CORES) $(POWER_FLAGS)

FRAMES := 1000000

.PHONY: fuzz
fuzz: $(STAMP) ## a running gateway among hostile clients: FRAMES frames out of SEED (docs/hostile-clients.md)
	@$(BIN)/python -m tests.fuzz --seed $(SEED) --frames $(FRAMES) $(FUZZ_FLAGS)

REQUESTS := 100000

.PHONY: differential
differential: $(STAMP) ## REQUESTS odd requests out of SEED to a gateway and to the broker beside it (docs/differential.md)
	@$(BIN)/python -m tests.differential --seed $(SEED) --requests $(REQUESTS)

.PHONY: bench
bench: $(STAMP) ## the benchmarks beside a named alternative each; writes docs/performance.md
	@$(BIN)/python -m benchmarks $(BENCH_FLAGS)

.PHONY: docs
docs: $(STAMP) ## the pages that are made from code
	@$(BIN)/python -m infra.settings_page docs/settings.md
	@$(BIN)/python -m infra.apis_page docs/apis.md
	@$(BIN)/python -m infra.requests_page docs/requests.md
	@$(BIN)/python -m infra.rights_page .

.PHONY: jars
jars: $(STAMP) ## Kafka's jars and the plugin of tiered storage, by Maven (compose.yaml mounts it)
	@$(BIN)/python -c "from tideline.stack.kafka_jars import ensure, libraries; ensure(libraries())"

SPARK_ENV := dist/tideline-spark-env.tar.gz
SOURCES := $(shell find tideline workflows activities spark dags infra -name '*.py' -o -name '*.sql' 2>/dev/null)

$(SPARK_ENV): $(STAMP) $(SOURCES) infra/images/jobs.lock
	@$(BIN)/python -m infra.spark_env $@

.PHONY: spark-env
spark-env: $(SPARK_ENV) ## what Spark's drivers and executors need, as one archive for any place (docs/spark.md)
	@ls -lh $(SPARK_ENV)

CHECKS := .tools/checks
HELM := .tools/bin/helm

$(CHECKS)/bin/hadolint: $(UV) infra/images/checks.lock
	@test -x $(CHECKS)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(CHECKS)
	@$(UV) pip sync --quiet --python $(CHECKS)/bin/python --require-hashes infra/images/checks.lock
	@touch $@

# A Go module: needs a Go toolchain and, the first time, some minutes.
$(HELM): | $(UV)
	@GOBIN=$(CURDIR)/.tools/bin go install helm.sh/helm/v3/cmd/helm@v3.18.6

.PHONY: images
images: $(STAMP) $(CHECKS)/bin/hadolint ## Dockerfile and compose.yaml by their linters (nothing is built)
	@$(CHECKS)/bin/hadolint Dockerfile infra/spark/Dockerfile
	@$(CHECKS)/lib/python*/site-packages/compose/docker-compose --file compose.yaml config --quiet # its wrapper ends with 0, whatever it found
	@echo "Dockerfile and compose.yaml are in order"

.PHONY: chart
chart: $(STAMP) $(CHECKS)/bin/hadolint $(HELM) ## the Helm chart: lint, rendered, against Kubernetes' schemas and Tideline's settings
	@$(BIN)/python -m infra.chart_check $(HELM) $(CHECKS)/bin/kubernetes-validate
	@$(BIN)/pytest tests/contract/programs/test_chart_rendered.py

.PHONY: schema-dump
schema-dump: $(STAMP) ## the schema of VERSION=x.y.z as upgrades are tested from it
	@$(BIN)/python -m tests.contract.schema $(VERSION)
