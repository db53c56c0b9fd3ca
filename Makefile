# `make demo` and `make test` need Python 3.11+ and nothing else; both leave a .venv here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE  # every process that tests start would compile all of Symphony again

.PHONY: help install demo test slow lint style types tests format fuzz faults clean

help:
	@echo "make demo     compare policies on a simulated cluster (report in demo/), then on real kernels here"
	@echo "make test     linter, type checker and tests"
	@echo "make slow     tests that take long for what they add"
	@echo "make fuzz     fresh random scenarios through both simulators, for as long as you like (SEEDS=200)"
	@echo "make faults   fresh runs of service, core and a simulated engine in which things go wrong (SEEDS=200)"
	@echo "make format   rewrite the sources in the house style"

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Symphony needs Python 3.11 or newer; run make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	# Not compiled to byte code: that would take a third of the time, and most of it is never imported.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]'
	touch $@

install: $(VENV)/.installed

demo: install
	$(BIN)/symphony compare --topology paper --workload 'variant-calling?jobs=60' --seeds 8 --report demo
	@echo "Open demo/report.html for the schedules. Now for real, on this machine:"
	$(BIN)/python -m examples.mix

lint: style types

style: install
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples

types: install
	$(BIN)/mypy

tests: install
	$(BIN)/python -m pytest -n 2 --dist worksteal

test: style
	$(MAKE) --no-print-directory -j 2 types tests  # side by side: the type checker takes one core for half a minute

slow: install
	$(BIN)/python -m pytest -m slow

format: install
	$(BIN)/ruff check --fix src tests benchmarks examples
	$(BIN)/ruff format src tests benchmarks examples

SEEDS ?= 200
fuzz: install
	$(BIN)/python -m tests.simulator.fuzz --seeds $(SEEDS)

faults: install
	$(BIN)/python -m tests.whole_system.fuzz --seeds $(SEEDS)

clean:
	rm -rf $(VENV) demo out .pytest_cache .mypy_cache .ruff_cache .hypothesis
