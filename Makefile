# Commands for a new clone: `make demo`, `make example` and `make test`.  They set up .venv first; nothing else is needed
# but Python 3.11 or later, git and make.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
EXTRA := dev
READY := $(VENV)/.ready
# Tests start hundreds of processes: without compiled modules each would compile them anew, for a third of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo example example-spark test test-long test-versions lint types docs check bench mutants soak soak-processes clean

demo: $(READY)
	$(VENV)/bin/spe run configs/quickstart.yaml --faults configs/faults/quickstart.yaml --report

# From Kafka through a partitioned query into PostgreSQL, with everything killed in turn; KAFKA and POSTGRES may say where.
example: $(READY)
	$(VENV)/bin/python -m examples.kafka_to_postgres

# Two Spark jobs feed and read a query whose nodes are tasks of Spark, and an executor is killed.
example-spark: $(READY)
	$(VENV)/bin/python -m examples.on_spark

# Three processes for two cores: one of them runs the tests of real processes, in turn, and waits much of the time;
# another one begins with those of Spark.
test: $(READY)
	$(VENV)/bin/pytest -n 3 -m "not long"

# What `make test` leaves out: the same at more length, in more forms, and with more real processes.
# PART=2/4 plays the second of four parts; a test is always in the same one.
test-long: $(READY)
	PART=$(PART) $(VENV)/bin/pytest -n 3 -m long

# Unit and property tests on the other supported versions of Python that are found here; in at most SECONDS, if given.
test-versions: $(READY)
	$(VENV)/bin/python -m tests.versions $(if $(SECONDS),--seconds $(SECONDS))

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(READY)
	$(VENV)/bin/mypy

# The documentation as a site in build/docs; a warning (a broken link, a docstring that does not parse) is an error.
docs: $(READY)
	$(VENV)/bin/sphinx-build -q -W --keep-going -b html docs build/docs

check: lint types docs test test-long

# A short set of ratios beside those of the last release; all benchmarks: python -m benchmarks.
bench: $(READY)
	$(VENV)/bin/python -m benchmarks.ratios

# Every known mutant with the tests of its rule, and the share killed by folder; stopped, it goes on where it was.
mutants: $(READY)
	$(VENV)/bin/python -m tests.mutants.play

# Fresh seeds in virtual time for HOURS, on all cores; a report with what was tried and held.
soak: $(READY)
	$(VENV)/bin/python -m tests.soak.simulation --hours $(or $(HOURS),1)

# Real processes under random faults for MINUTES; memory and descriptors must return to their level.
# STEADY=yes: without faults, for more than 20 minutes; memory must stay level.
soak-processes: $(READY)
	$(VENV)/bin/python -m tests.soak.processes --minutes $(or $(MINUTES),10) $(if $(STEADY),--steady)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed (set PYTHON=...)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) has no ensurepip; on Debian or Ubuntu: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)/bin/pip install --quiet -e '.[$(EXTRA)]'
	@touch $@

clean:
	rm -rf $(VENV) .venvs runs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
