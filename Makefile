# `make demo` and `make test` need Python 3.11 or newer, make and a package index, and nothing else.

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

# What most often catches a mistake, in a minute: the house, values, layouts, passes, problems, protocol, prices, plans.
QUICK := tests/test_house.py tests/test_layers.py tests/test_order.py tests/strategy/base tests/strategy/sbp tests/strategy/program \
  tests/strategy/hardware tests/strategy/layout tests/strategy/cost tests/strategy/graph/test_graph.py \
  tests/strategy/graph/test_signature.py tests/strategy/passes/test_autodiff.py tests/strategy/passes/test_offload.py \
  tests/strategy/passes/test_training.py tests/strategy/passes/test_updates.py tests/strategy/passes/test_zero_layouts.py \
  tests/strategy/lowering/test_stage_order.py tests/strategy/lowering/test_traffic.py tests/strategy/space/test_rules.py \
  tests/strategy/comm/test_busiest_rank.py tests/strategy/comm/test_chains.py tests/strategy/comm/test_hierarchical.py \
  tests/strategy/comm/test_rank_parts.py tests/strategy/comm/test_transfer.py tests/strategy/ilp/test_check.py \
  tests/strategy/ilp/test_problem.py tests/strategy/ilp/test_problem_file.py tests/strategy/ilp/solve/test_elimination.py tests/strategy/ilp/solve/test_evaluate.py \
  tests/strategy/ilp/solve/test_joins.py tests/strategy/ilp/solve/test_message_bound.py tests/strategy/plan/test_plan.py \
  tests/executor/test_checkpoint.py

.PHONY: demo quick test long lint docs clean

demo: $(STAMP)
	$(VENV)/bin/sbplan demo

quick: $(STAMP)
	$(VENV)/bin/python -m pytest -n 2 -q --dist worksteal -m "not slow and not mpi and not long" $(QUICK) $(PYTEST_ARGS)

test: $(STAMP)
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

# Whole commands that take minutes, such as the pages as they are printed, and the cases that `make test` leaves out of
# those that a test lists (`tests/support/long_parameters.py`). The gate runs them, too.
long: $(STAMP)
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal -m long $(PYTEST_ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/codespell

# The site; any warning is an error. Its tools are an extra of their own, which nothing else here needs.
docs: $(STAMP)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(VENV)/bin/mkdocs build --strict --config-file .mkdocs.yml

# The entry is copied at installation (see pyproject.toml); everything else is used from where it lies.
$(STAMP): pyproject.toml experiments/entry.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "sbplan needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) -V 2>&1`: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 5; }
	$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[mpich,notebooks,trainers,dev]'
	$(VENV)/bin/python -m strategy.ilp.solve.warm
	$(VENV)/bin/python -m strategy.layout.warm
	$(VENV)/bin/python -m strategy.graph.warm
	$(VENV)/bin/python -m simulator.warm
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
