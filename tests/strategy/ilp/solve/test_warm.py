"""Warming up compiles every hot loop."""

from __future__ import annotations

import importlib
import pkgutil
import random

import pytest

from strategy.base.compiled import CompiledLoop
from strategy.ilp import solve as solver
from strategy.ilp.solve import branch_and_bound
from strategy.ilp.solve import solve as solve_problem
from strategy.ilp.solve.warm import warm
from tests.strategy.ilp.problems import ladder
from tests.strategy.ilp.solve.oracle import shared_copies


def signatures() -> dict[str, int]:
    """For how many types every compiled function of the solver has been compiled, or loaded from its cache."""
    modules = [importlib.import_module(m.name) for m in pkgutil.iter_modules(solver.__path__, f"{solver.__name__}.")]
    return {
        f"{module.__name__}.{name}": len(value.load().signatures)
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, CompiledLoop)
    }


def test_once_warm_nothing_is_compiled_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory, joins, branching and forbidden pairs, all by messages."""
    warm()
    before = signatures()
    monkeypatch.setattr(branch_and_bound, "ROOT_ELIMINATION_CELLS", 0)
    monkeypatch.setattr(branch_and_bound, "ELIMINATION_CELLS", 0)
    methods = {solve_problem(shared_copies(random.Random(seed), values=3, held=True)).method for seed in range(4)}
    methods |= {solve_problem(ladder(rungs=4, seed=1, limit=2 * 10**9)).method}
    assert "messages" in methods or "branching" in methods
    assert signatures() == before
