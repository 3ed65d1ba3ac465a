"""The companion of a worker: it goes on with messages while an act computes, and at no other time."""

from __future__ import annotations

import json
import time

import pytest

from executor.runtime.companion import Companion
from tests.mpi.launch import run_ranks


class Worker:
    """Counts looks, those that came while it was not away above all."""

    def __init__(self) -> None:
        self.is_away = False
        self.looks = self.wrong = 0

    def go_on(self) -> None:
        self.looks += 1
        self.wrong += not self.is_away

    def act(self, seconds: float) -> str:
        self.is_away = True
        time.sleep(seconds)
        self.is_away = False
        return "done"


def test_it_looks_while_an_act_computes_and_never_else() -> None:
    worker = Worker()
    with Companion(worker.go_on) as companion:
        time.sleep(0.02)
        assert worker.looks == 0
        for _ in range(3):
            assert companion.beside(lambda: worker.act(0.05)) == "done"
            before = worker.looks
            time.sleep(0.01)
            assert worker.looks == before
    assert worker.looks >= 15
    # A look that began while the act was under way may end after it, not begin.
    assert worker.wrong <= 3
    before = worker.looks
    time.sleep(0.01)
    assert worker.looks == before


def test_what_goes_wrong_beside_an_act_is_raised_after_it() -> None:
    def fail() -> None:
        raise ValueError("beside")

    with Companion(fail) as companion, pytest.raises(ValueError, match="beside"):
        companion.beside(lambda: time.sleep(0.02))


def test_an_act_that_fails_ends_the_block() -> None:
    def fail() -> None:
        raise ValueError("the act")

    companion = Companion(lambda: None)
    with pytest.raises(ValueError, match="the act"), companion:
        companion.beside(fail)
    with companion:  # and it can be used again
        assert companion.beside(lambda: 3) == 3


@pytest.mark.mpi
def test_collectives_go_on_beside_an_act() -> None:
    """Ten in a row, each of which would wait for the act."""
    for rank in json.loads(run_ranks(2, "tests.mpi.beside_an_act")):
        assert rank["act_ms"] >= 200
        assert len(rank["collectives_end_ms"]) == 10
        assert max(rank["collectives_end_ms"]) < rank["act_ms"]
