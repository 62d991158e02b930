# The README's two commands are `make run` and `make test`; each makes .venv first when it is not there.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
FEDERATION := .venv-federation
DEMO := .neorl/generated/chemical_reactor

.PHONY: run test pytest test-slow test-312 core coverage lint reference graph-picture dead bench bench-accelerator plants study ope-study fleet-study graph-study tune plants-pipeline chaos season resume history cartpole streaming historian nasty store tamper redteam calibration certification identify fleet picture audit-picture screens services federation federation-lock docs secrets pin-images scan baseline lock clean

run: $(READY)  ## from nothing to a certified, registered, explained policy
	@$(BIN)/neorl up --no-worker & servers=$$!; \
	$(BIN)/neorl generate chemical_reactor --out $(DEMO) && wait $$servers || exit; \
	$(BIN)/neorl up > /dev/null & worker=$$!; \
	$(BIN)/neorl retrain configs/chemical_reactor.yaml --data $(DEMO)/historian.parquet && wait $$worker && \
	if [ -f .venv/.seconds ]; then echo "(installation took $$(cat .venv/.seconds) s before that)"; fi

test: $(READY)  ## lint, types, import contracts, tests; side by side, for neither needs the other
	@$(MAKE) --no-print-directory -j2 lint pytest

pytest: $(READY)
	$(BIN)/python -m pytest

coverage: $(READY)  ## the tests again, slower, with line coverage of what the commands they start execute, too
	$(BIN)/python -m pytest --cov --cov-report=term

lint: $(READY)  ## what .pre-commit-config.yaml runs, too
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

core: $(READY)  ## the core installed alone, all of it imported, and its tests
	infra/core.sh $(BIN)/python $(TESTS)

test-312: $(READY)  ## the same on Python 3.12, where there is one
	@found=$$(for each in python3.12 "$$HOME"/.pyenv/versions/3.12.*/bin/python3.12; do \
	  "$$each" -c 'import sys; print(sys.executable)' 2>/dev/null && break; done); \
	if [ -n "$$found" ]; then infra/core.sh "$$found" $(TESTS); else echo "skipped: no Python 3.12 here"; fi

# A part of the core's tests is enough to see that the core stands alone; `make core` and `make test-312` run all.
SOME := tests/neorl_core/test_networks.py tests/neorl_core/ope tests/neorl_core/safety/test_bounds.py \
  tests/neorl_core/training/test_optimisers.py tests/neorl_core/algorithms/test_algorithms.py

test-slow: $(READY)  ## what takes long: the core alone, another Python, unused names, tests marked slow
	$(MAKE) core TESTS="$(SOME)"
	$(MAKE) test-312 TESTS="$(SOME)"
	$(MAKE) dead
	$(MAKE) federation
	$(BIN)/python -m pytest -m slow || [ $$? = 5 ]

dead: $(READY)  ## names that nothing uses
	$(BIN)/vulture

bench: $(READY)  ## speed and time tables, kept under benchmarks/results
	$(BIN)/python -m benchmarks.training

bench-accelerator: $(READY)  ## populations of up to a thousand on the device that JAX finds, what is missing; writes docs/studies/accelerators.md
	$(BIN)/python -m benchmarks.accelerator

plants: $(READY)  ## outside values, speeds, controllers, pictures and sensitivity of the plants; writes docs/studies/plants.md
	$(BIN)/python -m benchmarks.plants

tune: $(READY)  ## search for better parameters of every plant's controller; writes a table into docs/studies/plants.md
	$(BIN)/python -m benchmarks.tuning

plants-pipeline: $(READY)  ## every plant through a retraining on generated logs; writes docs/studies/pipeline.md
	$(BIN)/python -m benchmarks.plants_pipeline

chaos: $(READY)  ## two hundred faults in the middle of retrainings, those that are missing; writes docs/studies/chaos.md
	$(BIN)/python -m benchmarks.chaos

study: $(READY)  ## retraining on nine plants and three behaviours held against the truth, runs that are missing; writes docs/studies/retraining.md
	$(BIN)/python -m benchmarks.study
	$(BIN)/python -m benchmarks.study --official

ope-study: $(READY)  ## off-policy evaluation held against the truth, cells that are missing; writes docs/studies/ope.md
	$(BIN)/python -m benchmarks.ope_study

fleet-study: $(READY)  ## twenty similar reactors alone, together and federated, cells that are missing; writes a table into docs/federated-learning.md
	$(BIN)/python -m benchmarks.fleet_study

graph-study: $(READY)  ## graph policies of a feeder's switches against every topology, cells that are missing; writes docs/graphs.md's tables
	$(BIN)/python -m benchmarks.graph_study

season: $(READY)  ## ninety days of a plant that wears, each with monitoring and a retraining; writes docs/studies/season.md
	$(BIN)/python -m benchmarks.season

resume: $(READY)  ## kill -9 the training of every algorithm at twenty random steps and compare bits
	$(BIN)/python -m benchmarks.resume

history: $(READY)  ## what earlier values are worth on the industrial benchmark; writes a table into docs/training.md
	$(BIN)/python -m benchmarks.history

cartpole: $(READY)  ## discrete learners on CartPole from a Minari file, and the table of docs/discrete.md
	$(BIN)/python -m benchmarks.cartpole

streaming: $(READY)  ## training on data four times as large as its memory beside resident data
	$(BIN)/python -m benchmarks.streaming

historian: $(READY)  ## raw rows/s and memory of ingesting 200 million rows, beside polars' own scan of the same files
	$(BIN)/python -m benchmarks.historian

nasty: $(READY)  ## small files as plants have them through ingestion; writes docs/studies/import-files.md
	$(BIN)/python -m benchmarks.nasty

ROWS ?= 100000000
store: $(READY)  ## the dataset store beside its yardsticks, and validation of ROWS transitions (100 million by default)
	$(BIN)/python -m benchmarks.store --validate $(ROWS)

reference: $(READY)  ## write the generated pages of docs/reference: commands, YAML keys, tasks, metrics
	$(BIN)/python -m infra.reference

graph-picture: $(READY)  ## a screenshot of the last run's graph in Prefect; writes docs/explanation/graph.png
	$(BIN)/python -m benchmarks.pictures.graph

tamper: $(READY)  ## flip bytes everywhere and count what the audit finds
	$(BIN)/python -m benchmarks.tamper

redteam: $(READY)  ## attacks on copies of the home; writes docs/studies/red-team.md
	$(BIN)/python -m benchmarks.redteam

certification: $(READY)  ## the first p0 of a ladder that certifies for every plant, and episodes per second; writes a table into docs/studies/pipeline.md
	$(BIN)/python -m benchmarks.certification --home "$${NEORL_HOME:-.neorl}"
	$(BIN)/python -m benchmarks.plants_pipeline --page

calibration: $(READY)  ## false certificates in 10,000 trials of each attempt; writes docs/studies/calibration.md
	$(BIN)/python -m benchmarks.calibration

TRIALS ?= 1000
identify: $(READY)  ## identify reactors from their logs, judge and certify them (TRIALS of the last); writes docs/identify.md
	$(BIN)/python -m benchmarks.identify.reactors --trials $(TRIALS)

fleet: $(READY)  ## twenty made reactors through `neorl fleet retrain`, killed once, then again: 19 decisions, one refusal, nothing new
	$(BIN)/python -m benchmarks.fleet

picture: $(READY)  ## copy the last run's picture into the README
	cp "$$(ls -t .neorl/runs/chemical_reactor/*/plots/glance.png | head -1)" docs/result.png

audit-picture: $(READY)  ## a picture of the audit report over the last run's day; writes docs/how-to/audit.png
	$(BIN)/python -m benchmarks.pictures.audit

screens: $(READY)  ## pictures of what each user sees first, of the home's last run; writes docs/studies/screens.md
	$(BIN)/python -m benchmarks.pictures.screens

services:  ## Debian packages that only some tests need
	@missing=; command -v chromium >/dev/null || missing="$$missing chromium"; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	[ -d /usr/lib/postgresql ] || missing="$$missing postgresql"; \
	if [ -z "$$missing" ]; then echo "chromium, redis-server, prometheus and postgresql are here"; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends $$missing; \
	else echo "$$missing: they need apt-get and root; the tests that use them will skip"; fi

federation: $(FEDERATION)/.ready  ## Flower, for federations over a network, in an environment of its own: its pins clash with ours

$(FEDERATION)/.ready: infra/federation.lock | $(READY)
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(FEDERATION)
	$(BIN)/uv pip install -q --python $(FEDERATION)/bin/python --require-hashes -r infra/federation.lock
	touch $@

federation-lock: $(READY)  ## pin the newest allowed versions of what Flower brings
	$(BIN)/uv pip compile infra/federation.in --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header --upgrade -q -o infra/federation.lock

docs: $(READY)  ## the documentation as a site in site/, which opens from the disk; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -d site

secrets: $(READY)  ## passwords, keys and certificates for infra/compose.yaml and infra/kubernetes, in infra/secrets
	$(BIN)/python infra/make_secrets.py

pin-images: $(READY)  ## the digest of each image behind its tag, where its registry answers
	$(BIN)/python -m infra.pin_images

scan: $(READY)  ## secrets in tracked files, and known flaws of pinned packages where their database answers
	$(BIN)/python infra/scan.py

baseline: $(READY)  ## list what `make scan` finds now as no secrets
	$(BIN)/python infra/scan.py --baseline

lock: $(READY)  ## pin the newest allowed versions, with hashes and without index addresses
	$(BIN)/uv pip compile pyproject.toml --extra pipeline --extra team --extra gym --extra docs --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header --upgrade -q -o requirements.lock

clean:  ## remove environments, caches and the site; a home (.neorl), with its ledger and keys, stays
	@if [ -x $(BIN)/neorl ]; then $(BIN)/neorl down; fi
	rm -rf .venv $(FEDERATION) site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage* htmlcov

$(READY): requirements.lock infra/uv.lock pyproject.toml
	@started=$$SECONDS; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "expected Python 3.11 or newer, got " + sys.version.split()[0] + ": name one with make PYTHON=...")' && \
	$(PYTHON) -m venv .venv && \
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r infra/uv.lock && \
	$(BIN)/uv pip install -q --require-hashes -r requirements.lock && \
	touch README.md && $(BIN)/uv pip install -q --no-deps --no-build-isolation -e . && \
	echo $$((SECONDS - started)) > .venv/.seconds && touch $@
