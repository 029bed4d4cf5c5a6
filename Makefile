# make help lists what there is. Everything here runs as root on a plain Debian machine with Go
# and Python 3.11; what a step needs beyond that it installs or names.

PYTHON ?= python3.11
# A Python that can make environments, not one of an environment: .venv may lead the path already.
BASE_PYTHON := $(shell PATH="$$(echo "$$PATH" | tr : '\n' | grep -v '/[.]venv/bin$$' | paste -sd:)"; command -v $(PYTHON))
ENGINE ?= sim
CLUSTER ?= embedded
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup check generate test demo demo-down fuzz bench-core bench-load bench-judge bench-tuner bench-engine bench-context bench-crossing bench-attention bench-real bench-screen lock

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.done ## Make .venv with the specschedule command and all tools in it

$(VENV)/.done: requirements-dev.lock pyproject.toml
	@test -n "$(BASE_PYTHON)" || { echo "$(PYTHON) is missing: install Python 3.11 or newer and say PYTHON=..."; exit 1; }
	@$(BASE_PYTHON) -m uv --version >/dev/null 2>&1 || $(BASE_PYTHON) -m pip install --quiet --root-user-action=ignore uv==0.13.9
	$(BASE_PYTHON) -m uv venv --quiet --clear --python $(BASE_PYTHON) $(VENV)
	$(BASE_PYTHON) -m uv pip sync --quiet --require-hashes --python $(BIN)/python requirements-dev.lock
	$(BASE_PYTHON) -m uv pip install --quiet --no-deps --python $(BIN)/python --editable .
	@touch $@

check: setup ## Formatting, lint, types, import rules, spelling, generated files (seconds)
	ruff format --check --quiet operator tests hack
	ruff check --quiet operator tests hack
	mypy
	lint-imports
	codespell operator tests hack charts docs *.md
	python hack/checks.py

generate: setup ## Write the CRDs from the types into crds/ and the chart
	python -m specschedule.api.crd crds charts/specschedule

lock: setup ## Renew the hash-pinned requirement files
	$(BASE_PYTHON) -m uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header pyproject.toml -o requirements.lock
	$(BASE_PYTHON) -m uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --group dev pyproject.toml -o requirements-dev.lock

test: setup check ## Everything that proves it, unit to end to end
	python hack/run_tests.py

demo: setup ## The main job, live, on a cluster (ENGINE=vllm: with the real engine; CLUSTER=current: yours)
	python -m hack.demo up --engine $(ENGINE) --cluster $(CLUSTER)

demo-down: setup ## Remove all that the demo made
	python -m hack.demo down --cluster $(CLUSTER)

fuzz: setup ## Five minutes of generated schedules, arguments and logs
	python hack/fuzz.py

bench-core: setup ## Time of the schedule language and of a preflight
	python tests/bench/bench_core.py

bench-load: setup ## Accuracy and cost of the load generator
	python tests/bench/bench_load.py --page docs/evidence/bench-load.md

bench-engine: setup ## What recorder and scheduler add to an engine step: real vLLM with and without
	python tests/bench/bench_engine.py --folder .work/bench-engine --page docs/evidence/bench-engine.md

bench-context: setup ## Real vLLM: every step's K under five-number rows, and what they cost
	python tests/bench/bench_context.py --folder .work/bench-context --page docs/evidence/context-vllm.md

bench-crossing: setup ## Real vLLM: each change of K and its cost, as a table and a picture
	python tests/bench/bench_crossing.py --folder .work/bench-crossing --page docs/evidence/crossing-vllm.md

bench-attention: setup ## Does verify attention follow the summed context or the longest? (a GPU where there is one)
	python tests/bench/bench_attention.py --page docs/evidence/bench-attention.md

bench-screen: setup ## Real vLLM: every K in one boot against one boot for each K
	python tests/bench/bench_screen.py --folder .work/bench-screen --page docs/evidence/screen-vllm.md
	python tests/bench/bench_screen.py --folder .work/bench-screen-ngram --method ngram \
	  --page docs/evidence/screen-ngram-vllm.md

bench-tuner: setup ## Regret and cost of the tuner, in virtual time
	python tests/bench/bench_tuner.py --page docs/evidence/bench-tuner.md

bench-judge: setup ## False promotions and power of the judge, in virtual time
	python tests/bench/bench_judge.py --page docs/evidence/bench-judge.md

bench-real: setup ## A/A runs and true winners on real vLLM, 18 minutes at a time (exit 3: more are left)
	python tests/bench/bench_real.py
