"""A seeded part of campaigns on faults: `python -m tests.campaigns graph-mutants|folding|faults|hangs|messages`."""

from __future__ import annotations

import pytest

from executor.runtime.transport.loopback import LoopbackHub, Receipt, SentMessage
from strategy.graph.signature import _enumerate
from strategy.space.classes import classify
from strategy.space.layout_problem import layout_problem
from tests.campaigns import faults, folding, graph_mutants, hangs, messages
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


@pytest.mark.long
def test_what_befalls_a_message_is_named() -> None:
    outcome = messages.run(54, seed=0)
    assert outcome.failures == []
    assert outcome.unmet() == []


def test_numbers_that_nobody_compares_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the campaign must not accept: mail that is taken as it comes."""
    real = Receipt.fill

    def trusting(self: Receipt, message: SentMessage) -> None:
        message.number = self.number
        real(self, message)

    monkeypatch.setattr(Receipt, "fill", trusting)
    assert any("renumbered: nobody has noticed" in failure for failure in messages.run(12, seed=0).failures)


@pytest.mark.long
def test_mail_that_nobody_misses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the campaign must not accept: a second copy of the last message is left lying."""
    monkeypatch.setattr(LoopbackHub, "unclaimed", lambda self, rank: [])
    assert any("doubled: nobody has noticed" in failure for failure in messages.run(12, seed=0).failures)


@pytest.mark.mpi
@pytest.mark.long
def test_no_random_program_hangs() -> None:
    outcome = hangs.run(50, seed=500_000)
    assert outcome.failures == []
    assert outcome.unmet() == []


@pytest.mark.mpi
@pytest.mark.long
def test_a_broken_rank_ends_its_job_in_time_and_is_named() -> None:
    """Each way of breaking once; here other tests keep the cores busy, so that only limits of ten seconds are held."""
    outcome = faults.run(4, seed=1)
    assert [told for told in outcome.failures if ": took " not in told] == []
