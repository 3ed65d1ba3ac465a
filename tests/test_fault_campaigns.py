"""A seeded part of campaigns on faults: `python -m tests.campaigns graph-mutants|folding`."""

from __future__ import annotations

import pytest

from strategy.graph.signature import _enumerate
from strategy.space.classes import classify
from strategy.space.layout_problem import layout_problem
from tests.campaigns import folding, graph_mutants
from tests.support.small_plans import config_of


def test_every_op_that_does_not_compose_is_reported_at_once() -> None:
    outcome = graph_mutants.run(200, seed=0)
    assert outcome.failures == []
    assert outcome.unmet() == []


@pytest.mark.parametrize("degrees", [{"dp": 2, "tp": 2}, {"tp": 4}])
def test_alike_layers_are_enumerated_once_however_many_there_are(degrees: dict[str, int]) -> None:
    """By counts instead of by time: more layers add ops, and no classes or nodes, nor signatures to enumerate."""
    config = config_of(folding.TRAINING, **degrees)
    few, many = folding.space(config, 3), folding.space(config, 12)
    assert len(many.graph.ops) > 3 * len(few.graph.ops)
    known = layout_problem(few)
    before = _enumerate.cache_info().misses
    found = layout_problem(many)
    assert _enumerate.cache_info().misses <= before + 1  # one op reads something of every layer
    assert len(classify(many).of_ops) == len(classify(few).of_ops)
    assert [len(node.costs) for node in found.problem.nodes] == [len(node.costs) for node in known.problem.nodes]
    assert len(found.problem.edges) == len(known.problem.edges)
