"""What ranks must share is compared before they do anything together: `python -m tests.campaigns disagreement`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.jobs import ranks
from experiments.jobs.ranks import agree
from strategy.base.errors import PlanError
from tests.campaigns import disagreement
from tests.support.long_parameters import long_but


class Gathered:
    """A communicator of ranks that have said what they are."""

    def __init__(self, *others: dict[str, str]) -> None:
        self.others = others

    def allgather(self, mine: dict[str, str]) -> list[dict[str, str]]:
        return [mine, *({**mine, **other} for other in self.others)]


@pytest.fixture(autouse=True)
def _gathered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Communication as such is left to the tests on real ranks."""
    if request.node.get_closest_marker("mpi") is None:
        monkeypatch.setattr(ranks, "gather", lambda comm, mine: comm.allgather(mine))
        monkeypatch.setattr(ranks, "broadcast", lambda comm, told: told)


def refused(comm: Any, **mine: object) -> str:
    with pytest.raises(PlanError) as caught:
        agree(comm, **mine)
    return str(caught.value)


def test_alike_ranks_agree() -> None:
    comm: Any = Gathered({}, {}, {})
    agree(comm, plan="a", steps=3, checkpoint=None)


@pytest.mark.parametrize("what", ["plan", "steps", "checkpoint_every", "version"])
def test_one_rank_that_differs_is_named(what: str) -> None:
    told = refused(Gathered({}, {what: "other"}, {}), plan="a", steps=3, checkpoint_every=1)
    assert f"  - {what.replace('_', ' ')}: " in told
    assert "'other' on rank 2" in told
    assert "on rank 0, 1, 3" in told
    assert told.count("  - ") == 1


def test_everything_that_differs_is_told_at_once() -> None:
    told = refused(Gathered(*[{"steps": "4"}] * 6, {"plan": "b"}), plan="a", steps=3)
    assert "- plan: 'a' on rank 0, 1, 2, 3 and 3 more; 'b' on rank 7" in told
    assert "- steps: '3' on rank 0, 7; '4' on rank 1, 2, 3, 4 and 2 more" in told


def test_a_rank_of_a_version_that_says_less_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    comm: Any = Gathered()
    monkeypatch.setattr(comm, "allgather", lambda mine: [mine, {"plan": "a"}])
    assert "- version: " in refused(comm, plan="a")


@pytest.mark.mpi
@pytest.mark.parametrize(("what", "victim"), long_but([("version", 1), ("steps", 0), ("dtype", 1)], 2))
def test_ranks_that_are_started_otherwise_are_refused_before_they_train(tmp_path: Path, what: str, victim: int) -> None:
    assert list(disagreement.check(tmp_path, what, victim)) == []
