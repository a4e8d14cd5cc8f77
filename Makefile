# Everstep's commands; `make` alone lists them. Each one first builds its own environment, if it has to.
#
#   make test PYTHON=python3.12 VENV=.venv-3.12     another interpreter, beside the first

PYTHON ?= python3
VENV ?= .venv
SEEDS ?= 100000
SEED ?= 1
FAULTS ?= 50
PYTEST_FLAGS ?=

bin := $(VENV)/bin
pins := requirements/pins.txt
disk := 1.8 GB

# An environment is known by what it was made from: interpreter, folder and pins. Its stamp is written last and carries
# that identity in its name, so a changed pin or Python, a moved checkout and an interrupted build all mean: make it anew.
identity := $(shell { $(PYTHON) -c 'import sys; print(sys.version, sys.base_prefix)'; pwd; cat $(pins); } 2>&1 | cksum | cut -d' ' -f1)
made := $(VENV)/made-from-$(identity)
installed := $(made).project-$(shell cksum pyproject.toml | cut -d' ' -f1)

.DEFAULT_GOAL := help
.PHONY: help environment packages demo test programs simulate exactness soak reference parity lint format schemas pins clean

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

demo: environment ## a run that survives five disturbances on this machine, and its certificate
	@$(bin)/everstep demo

test: environment ## unit, simulation, local, TPU compiler, storage and cluster tests (PYTEST_FLAGS adds options, or names some)
	@case '$(PYTEST_FLAGS)' in *tests/storage* | *tests/cluster*) ;; *tests/*) exit 0 ;; esac; \
	if command -v go >/dev/null; then $(MAKE) --no-print-directory programs; fi # without Go the tests say what they skip
	@$(bin)/python -m pytest $(PYTEST_FLAGS)

programs: ## build the servers that tests run against, into ~/.cache/everstep; needs Go
	@$(PYTHON) tests/programs/build.py

simulate: environment ## the planner and controller against SEEDS fault schedules, on all cores
	@$(bin)/python -m pytest tests/simulation --seeds $(SEEDS) --numprocesses auto $(PYTEST_FLAGS)

exactness: environment ## equal bits on 8, 4, 2 and 1 devices in 4, 2 and 1 processes for 200 steps
	@$(bin)/python -m pytest tests/local/test_exactness.py --exact-steps 200 $(PYTEST_FLAGS)

soak: environment ## FAULTS random drills at a run, drawn from SEED; its end against an undisturbed one's (up to an hour)
	@$(bin)/python -m tests.soak.run_soak --seed $(SEED) --faults $(FAULTS) --out tests/soak/results/seed-$(SEED)-faults-$(FAULTS).json

reference: ## what PyTorch and OLMo-core compute again, against tests/reference/data; in VENV-reference and VENV-core
	@$(MAKE) --no-print-directory packages VENV='$(VENV)-reference' pins=requirements/reference.txt disk='6 GB'
	@$(VENV)-reference/bin/python tests/reference/make.py --check
	@$(MAKE) --no-print-directory packages VENV='$(VENV)-core' pins=requirements/reference-core.txt disk='6 GB'
	@$(VENV)-core/bin/python tests/reference/make_core.py --check

parity: environment ## how far our Olmo 3 is from that of transformers, in a table
	@$(bin)/python -m tests.reference.parity

lint: environment ## style, format, strict types, layers, published schemas
	@$(bin)/ruff check .
	@$(bin)/ruff format --check .
	@$(bin)/mypy
	@$(bin)/lint-imports --no-logo
	@$(bin)/python docs/schemas/generate.py --check

format: environment ## put the code in form
	@$(bin)/ruff check --fix-only --quiet .
	@$(bin)/ruff format .

schemas: environment ## write docs/schemas/*.json from the contract
	@$(bin)/python docs/schemas/generate.py

pins: ## resolve requirements/pins.txt again; versions stay unless pyproject.toml asks (UPGRADE=--upgrade); needs uv
	@command -v uv >/dev/null || { echo 'everstep: pinning needs uv on PATH: python3 -m pip install uv' >&2; exit 1; }
	@uv pip compile --quiet --universal --python-version 3.11 --all-extras $(UPGRADE) \
		--no-header --no-emit-index-url --no-emit-find-links pyproject.toml --output-file $(pins)
	@! grep -n '://' $(pins) || { echo 'everstep: $(pins) must name no address' >&2; exit 1; }

clean: ## remove environments, caches and build products
	@rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find orchestrator trainer tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

environment: $(installed) ## the pinned packages in VENV (default .venv)

packages: $(made)
	@:

$(installed): $(made)
	@$(bin)/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@rm -f '$(made)'.project-*
	@touch '$@'

$(made):
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "everstep: needs Python 3.11 or newer, and '$(PYTHON)' is $$('$(PYTHON)' --version 2>/dev/null || echo 'not a Python that runs'); name another one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; \
		exit 1; }
	@test ! -e '$(VENV)' || test -e '$(VENV)/pyvenv.cfg' || { \
		echo "everstep: '$(VENV)' exists and is no virtual environment; move it away, or name another: make $(MAKECMDGOALS) VENV=…" >&2; \
		exit 1; }
	@trap 'test -e "$@" || rm -rf "$(VENV)"' EXIT; trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 143' TERM; \
	echo "everstep: making $(VENV) with $$('$(PYTHON)' --version) from $(pins) (about $(disk) on disk; once)"; \
	rm -rf '$(VENV)'; \
	'$(PYTHON)' -m venv '$(VENV)' && '$(bin)/python' -m pip --version >/dev/null || { \
		echo "everstep: '$(PYTHON)' cannot make a virtual environment with pip; install its venv package (Debian, Ubuntu: apt install python3-venv) or name another Python: make $(MAKECMDGOALS) PYTHON=…" >&2; \
		exit 1; }; \
	'$(bin)/python' -m pip install --no-input --disable-pip-version-check --no-deps --requirement $(pins) || { \
		echo "everstep: the pinned packages could not be installed (reason above); nothing is left behind, so simply try again: make $(MAKECMDGOALS)" >&2; \
		exit 1; }; \
	'$(bin)/python' -m pip check --disable-pip-version-check || exit 1; \
	touch '$@'
