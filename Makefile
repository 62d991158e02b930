# `make run` and `make test` create .venv first if it is missing.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
FEDERATION := .venv-federation
DEMO := .neorl/generated/chemical_reactor

.PHONY: run test pytest test-slow test-312 core coverage lint reference graph-picture dead bench bench-accelerator plants study ope-study fleet-study graph-study tune plants-pipeline chaos season resume history cartpole streaming historian nasty store tamper redteam calibration drift learn-study transfer-study certification identify fleet picture audit-picture screens services federation federation-lock docs secrets pin-images scan baseline lock clean

run: $(READY)  ## generate logs, retrain, certify and register a policy from nothing
	@$(BIN)/neorl up --no-worker & servers=$$!; \
	$(BIN)/neorl generate chemical_reactor --out $(DEMO) && wait $$servers || exit; \
	$(BIN)/neorl up > /dev/null & worker=$$!; \
	$(BIN)/neorl retrain configs/chemical_reactor.yaml --data $(DEMO)/historian.parquet && wait $$worker && \
	if [ -f .venv/.seconds ]; then echo "(plus $$(cat .venv/.seconds) s for the installation)"; fi

test: $(READY)  ## lint, types, import contracts and tests, in parallel
	@$(MAKE) --no-print-directory -j2 lint pytest

pytest: $(READY)
	$(BIN)/python -m pytest

coverage: $(READY)  ## run the tests with line coverage, including started commands
	$(BIN)/python -m pytest --cov --cov-report=term

lint: $(READY)  ## run the checks of .pre-commit-config.yaml
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

core: $(READY)  ## install the core alone, import all of it and run the core tests
	infra/core.sh $(BIN)/python $(TESTS)

test-312: $(READY)  ## run the core tests on Python 3.12, if it is installed
	@found=$$(for each in python3.12 "$$HOME"/.pyenv/versions/3.12.*/bin/python3.12; do \
	  "$$each" -c 'import sys; print(sys.executable)' 2>/dev/null && break; done); \
	if [ -n "$$found" ]; then infra/core.sh "$$found" $(TESTS); else echo "skipped: no Python 3.12 here"; fi

# `make test-slow` runs only these tests of the core; `make core` and `make test-312` run all.
SOME := tests/neorl_core/test_networks.py tests/neorl_core/ope tests/neorl_core/safety/test_bounds.py \
  tests/neorl_core/training/test_optimisers.py tests/neorl_core/algorithms/test_algorithms.py

test-slow: $(READY)  ## run the slow checks: core alone, Python 3.12, unused names, slow tests
	$(MAKE) core TESTS="$(SOME)"
	$(MAKE) test-312 TESTS="$(SOME)"
	$(MAKE) dead
	$(MAKE) federation
	$(BIN)/python -m pytest -m slow || [ $$? = 5 ]

dead: $(READY)  ## list unused names
	$(BIN)/vulture

bench: $(READY)  ## measure speed of training, certification and a shielded action; writes docs/studies/speed.md
	$(BIN)/python -m benchmarks.training

bench-accelerator: $(READY)  ## measure large populations on the device that JAX finds; writes docs/studies/accelerators.md
	$(BIN)/python -m benchmarks.accelerator

plants: $(READY)  ## measure the simulated plants; writes docs/studies/plants.md
	$(BIN)/python -m benchmarks.plants

tune: $(READY)  ## search for better parameters of the tuned controllers; writes docs/studies/plants.md
	$(BIN)/python -m benchmarks.tuning

plants-pipeline: $(READY)  ## retrain every plant on generated logs; writes docs/studies/pipeline.md
	$(BIN)/python -m benchmarks.plants_pipeline

chaos: $(READY)  ## cause two hundred faults during retrainings; writes docs/studies/chaos.md
	$(BIN)/python -m benchmarks.chaos

study: $(READY)  ## score policies of default retrainings on nine plants; writes docs/studies/retraining.md
	$(BIN)/python -m benchmarks.study
	$(BIN)/python -m benchmarks.study --official

ope-study: $(READY)  ## compare off-policy evaluation with true values; writes docs/studies/ope.md
	$(BIN)/python -m benchmarks.ope_study

fleet-study: $(READY)  ## compare separate, pooled and federated training on twenty sites; writes docs/studies/fleet.md
	$(BIN)/python -m benchmarks.fleet_study

graph-study: $(READY)  ## measure graph policies on feeders; writes docs/studies/graphs.md
	$(BIN)/python -m benchmarks.graph_study

season: $(READY)  ## make ninety daily retrainings of a plant that changes slowly; writes docs/studies/season.md
	$(BIN)/python -m benchmarks.season

resume: $(READY)  ## kill and resume trainings of every algorithm, and compare the bits of the results
	$(BIN)/python -m benchmarks.resume

history: $(READY)  ## train with and without earlier observations as input; writes docs/studies/history.md
	$(BIN)/python -m benchmarks.history

cartpole: $(READY)  ## train PPO and the discrete offline learners on CartPole; writes docs/studies/cartpole.md
	$(BIN)/python -m benchmarks.cartpole.online
	$(BIN)/python -m benchmarks.cartpole

streaming: $(READY)  ## compare the speed of training on streamed data and on data in memory
	$(BIN)/python -m benchmarks.streaming

historian: $(READY)  ## measure speed and memory of ingesting 200 million raw rows
	$(BIN)/python -m benchmarks.historian

nasty: $(READY)  ## ingest a hundred odd files; writes docs/studies/import-files.md
	$(BIN)/python -m benchmarks.nasty

ROWS ?= 100000000
store: $(READY)  ## measure the dataset store, and the validation of ROWS transitions (default: 100 million)
	$(BIN)/python -m benchmarks.store --validate $(ROWS)

reference: $(READY)  ## write the generated pages of docs/reference: commands, YAML keys, tasks, metrics
	$(BIN)/python -m infra.reference

graph-picture: $(READY)  ## take a screenshot of the last run in Prefect; writes docs/explanation/graph.png
	$(BIN)/python -m benchmarks.pictures.graph

tamper: $(READY)  ## change bytes in copies of a home and count the changes that the audit finds
	$(BIN)/python -m benchmarks.tamper

redteam: $(READY)  ## make attacks on copies of a home; writes docs/studies/red-team.md
	$(BIN)/python -m benchmarks.redteam

certification: $(READY)  ## certify every plant for small probabilities of a violation; writes docs/studies/pipeline.md
	$(BIN)/python -m benchmarks.certification --home "$${NEORL_HOME:-.neorl}"
	$(BIN)/python -m benchmarks.plants_pipeline --page

calibration: $(READY)  ## count false certificates in 10,000 trials of each attempt to cheat; writes docs/studies/calibration.md
	$(BIN)/python -m benchmarks.calibration

learn-study: $(READY)  ## learn in the simulators of the plants with gradients; writes docs/studies/learn.md
	$(BIN)/python -m benchmarks.learn_study

transfer-study: $(READY)  ## score learned policies on plants that differ from the simulator; writes docs/studies/transfer.md
	$(BIN)/python -m benchmarks.transfer

drift: $(READY)  ## count false drift alarms in 100 simulated years of each case; writes docs/studies/drift.md
	$(BIN)/python -m benchmarks.calibration.drift

TRIALS ?= 1000
identify: $(READY)  ## identify reactors from logs and certify them (TRIALS trials); writes docs/studies/identify.md
	$(BIN)/python -m benchmarks.identify.reactors --trials $(TRIALS)

fleet: $(READY)  ## retrain twenty reactors by `neorl fleet retrain`, kill it once and repeat it
	$(BIN)/python -m benchmarks.fleet

picture: $(READY)  ## copy the last run's picture to docs/result.png
	cp "$$(ls -t .neorl/runs/chemical_reactor/*/plots/glance.png | head -1)" docs/result.png

audit-picture: $(READY)  ## make a picture of an audit report; writes docs/how-to/audit.png
	$(BIN)/python -m benchmarks.pictures.audit

screens: $(READY)  ## take pictures of the first page that each user sees; writes docs/studies/screens.md
	$(BIN)/python -m benchmarks.pictures.screens

services:  ## install Debian packages that some tests need
	@missing=; command -v chromium >/dev/null || missing="$$missing chromium"; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	[ -d /usr/lib/postgresql ] || missing="$$missing postgresql"; \
	if [ -z "$$missing" ]; then echo "chromium, redis-server, prometheus and postgresql are installed"; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends $$missing; \
	else echo "$$missing: install them with apt-get as root; tests that need them are skipped"; fi

federation: $(FEDERATION)/.ready  ## install Flower for federations over a network, in a separate environment

$(FEDERATION)/.ready: infra/federation.lock | $(READY)
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(FEDERATION)
	$(BIN)/uv pip install -q --python $(FEDERATION)/bin/python --require-hashes -r infra/federation.lock
	touch $@

federation-lock: $(READY)  ## pin the newest allowed versions of Flower's packages
	$(BIN)/uv pip compile infra/federation.in --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header --upgrade -q -o infra/federation.lock

docs: $(READY)  ## build the documentation into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -d site

secrets: $(READY)  ## make passwords, keys and certificates for infra/compose.yaml and infra/kubernetes in infra/secrets
	$(BIN)/python infra/make_secrets.py

pin-images: $(READY)  ## pin the digest of each container image
	$(BIN)/python -m infra.pin_images

scan: $(READY)  ## search tracked files for secrets, and pinned packages for known vulnerabilities
	$(BIN)/python infra/scan.py

baseline: $(READY)  ## mark the secrets that `make scan` now reports as false positives
	$(BIN)/python infra/scan.py --baseline

lock: $(READY)  ## pin the newest allowed versions of all packages, with hashes
	$(BIN)/uv pip compile pyproject.toml --extra pipeline --extra team --extra gym --extra docs --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header --upgrade -q -o requirements.lock

clean:  ## remove environments, caches and the site; keeps homes (.neorl)
	@if [ -x $(BIN)/neorl ]; then $(BIN)/neorl down; fi
	rm -rf .venv $(FEDERATION) site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage* htmlcov

$(READY): requirements.lock infra/uv.lock pyproject.toml
	@started=$$SECONDS; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python " + sys.version.split()[0] + " is too old: name Python 3.11 or newer with make PYTHON=...")' && \
	$(PYTHON) -m venv .venv && \
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r infra/uv.lock && \
	$(BIN)/uv pip install -q --require-hashes -r requirements.lock && \
	touch README.md && $(BIN)/uv pip install -q --no-deps --no-build-isolation -e . && \
	echo $$((SECONDS - started)) > .venv/.seconds && touch $@
