# `make demo` and `make test` need Python 3.11 or newer and make; both leave a virtual environment in .venv.
# Packages are installed at the exact versions, and with the hashes, of requirements/*.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := src tests benchmarks examples tools
NATIVE := src/symphony/estimation/flow_filter.c src/symphony/runtime/native.c
unexport PYTHONDONTWRITEBYTECODE  # every process that tests start would compile all of Symphony again

.PHONY: help install install-dev demo test slow style types format lock latest site release fuzz faults clean

help:
	@echo "make demo         compare policies on a simulated cluster (report in demo/), then on real kernels here"
	@echo "make test         the tests"
	@echo "make style        linter, formatter and type checker"
	@echo "make slow         tests that take long for what they add"
	@echo "make install      .venv with what using Symphony needs (make demo does that)"
	@echo "make install-dev  .venv with everything: all extras, tests, linters (make test does that)"
	@echo "make fuzz         fresh random scenarios through both simulators, for as long as you like (SEEDS=200)"
	@echo "make faults       fresh runs of service, core and a simulated engine in which things go wrong (SEEDS=200)"
	@echo "make format       rewrite the sources in the house style"
	@echo "make lock         resolve the versions in requirements/*.txt again (changes them)"
	@echo "make site         build the documentation site into build/html (LINKS=1: check links to other sites, too)"
	@echo "make latest       run the tests with the newest and the oldest versions that pyproject.toml allows"
	@echo "make release      build sdist and wheel into dist/, check them, and try the wheel in a fresh environment"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Symphony needs Python 3.11 or newer; run make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# Not compiled to byte code: that would take a third of the time, and most of it is never imported.
# Symphony itself is built with the setuptools that was just installed, so that nothing unpinned is downloaded for it.
define install_locked
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r $(1)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-build-isolation -e .
	touch $@
endef

$(VENV)/.base: pyproject.toml setup.py $(NATIVE) requirements/base.txt | $(BIN)/python
	$(call install_locked,requirements/base.txt)

$(VENV)/.dev: pyproject.toml setup.py $(NATIVE) requirements/dev.txt | $(BIN)/python
	$(call install_locked,requirements/dev.txt)
	touch $(VENV)/.base  # dev.txt holds everything in base.txt, at the same versions

install: $(VENV)/.base

install-dev: $(VENV)/.dev

demo: install
	$(BIN)/symphony compare --topology paper --workload 'variant-calling?jobs=40' --seeds 8 --report demo
	@echo "Open demo/report.html for the schedules. Now for real, on this machine:"
	$(BIN)/python -m examples.mix
	@echo "To watch such jobs live in a browser, with a service of your own: $(BIN)/symphony demo"

# Three on two cores: tests wait a sixth of the time, for processes that they have started. Those of a file run in one
# process: they share compiled programs.
test: install-dev
	$(BIN)/python -m pytest -n 3 --dist loadfile

slow: install-dev
	$(BIN)/python -m pytest -m slow

style: install-dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(MAKE) --no-print-directory types

types: install-dev
	$(BIN)/mypy

format: install-dev
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

lock: install-dev
	$(BIN)/python -m tools.lock

$(VENV)-site/.made: requirements/site.txt
	$(PYTHON) -m venv $(VENV)-site
	$(VENV)-site/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/site.txt
	touch $@

# LINKS=1 also asks for every address outside; that needs a network.
site: install-dev $(VENV)-site/.made
	$(BIN)/python -m tools.site build/site
	$(VENV)-site/bin/python -m sphinx -q -W --keep-going -j auto -b html build/site build/html
	$(if $(LINKS),$(VENV)-site/bin/python -m sphinx -q -b linkcheck build/site build/links)
	@echo "Open build/html/index.html"

latest: install-dev
	$(BIN)/python -m tools.latest

release: install-dev
	rm -rf dist
	$(BIN)/python -m tools.release --keep dist

SEEDS ?= 200
fuzz: install-dev
	$(BIN)/python -m tests.simulator.fuzz --seeds $(SEEDS)

faults: install-dev
	$(BIN)/python -m tests.whole_system.fuzz --seeds $(SEEDS)

clean:
	rm -rf $(VENV) $(VENV)-site demo out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
