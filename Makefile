# `make demo` runs the main job, `make test` the tests, `make docs` builds the site.
# Each does all of its own set-up in .venv and repeats nothing that is already done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help demo test docs dist soak lint bench figures clean

help:
	@echo "make demo    install what is needed, run the demo, say what to open"
	@echo "make test    install what is needed, lint, type-check, run the whole test suite"
	@echo "make docs    install what is needed, build the site into build/docs, warnings as errors"
	@echo "make dist    sdist and wheel into dist/; the wheel installed into an empty environment runs the quickstart"
	@echo "make bench   the speed tables of benchmarks/ (BENCH=simulators picks one; BENCH=peers compares with sbi and lampe)"
	@echo "make soak    verdicts counted, processes killed, power cut, disks failing, files altered: one table"
	@echo "make figures every figure, report and table of the reproduction, from results/"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make clean   remove .venv and what the other commands made"

# The environment is made once, and again only when the files that define it change.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Equipoise needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	@test -e $(VENV)/.dev -a ! pyproject.toml -nt $(VENV)/.dev -a ! constraints.txt -nt $(VENV)/.dev || { echo "installing equipoise into $(VENV) (a minute or two, once)"; $(BIN)/python -m pip install --quiet -c constraints.txt -e ".[all]"; }
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	@echo "installing equipoise and its test tools into $(VENV) (a few minutes, once)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/python -m equipoise.demo
	$(BIN)/equipoise run --out demo

# A process for each core, up to four; a file's tests stay together, and files begin in the order of conftest.py.
test: lint
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Notebooks are executed again only if they or the package changed (build/notebooks keeps their outputs).
docs: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q docs build/docs
	$(BIN)/python tools/check_site.py build/docs
	@echo "the site: build/docs/index.html"

dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python tools/try_wheel.py dist build/wheel

# The long versions of tests/soak; docs/reliability.md has what they count.
soak: $(VENV)/.dev
	$(BIN)/python tests/soak/soak.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

BENCH ?= simulators training diagnostics scaling
bench: $(VENV)/.dev
	@set -e; for b in $(BENCH); do echo "== benchmarks/$$b.py"; $(BIN)/python benchmarks/$$b.py; done

# On any machine, without a GPU: what is in results/ is all that it needs.
figures: $(VENV)/.demo
	$(BIN)/python results/figures.py
	$(BIN)/python results/tables.py

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
