"""A look at a message over MPI: as many calls as move what has come of it meanwhile, and one if it is short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from executor.runtime.transport.mpi import MpiReceipt, MpiRequest, calls_of
from executor.runtime.transport.mpi_messages import INT_MAX

KIB = 2**10


@dataclass
class Segments:
    """A request that is through after so many calls."""

    left: int
    calls: int = 0

    def Test(self, status: Any = None) -> bool:
        self.calls += 1
        self.left -= 1
        return self.left <= 0


@dataclass
class Status:
    came: int

    def Get_elements(self, _: Any) -> int:
        return self.came


@pytest.mark.parametrize(("nbytes", "calls"), [(0, 1), (8, 1), (40 * KIB, 3), (2**40, 32), (INT_MAX, 32)])
def test_a_long_message_is_called_for_more_often(nbytes: int, calls: int) -> None:
    assert calls_of(nbytes) == calls
    endless: Any = Segments(10**9)
    assert not MpiRequest(endless, "a piece for rank", 1, 0, calls_of(nbytes)).test()
    assert endless.calls == calls


def test_no_call_follows_the_one_that_ends_it() -> None:
    request: Any = Segments(5)
    assert MpiRequest(request, "a piece for rank", 1, 0, 64).test()
    assert request.calls == 5


def test_what_has_come_is_asked_no_more() -> None:
    request: Any = Segments(40)
    status: Any = Status(4 * 2**20)
    found = MpiReceipt(request, 1, 0, 4 * 2**20, status, None)  # type: ignore[arg-type]
    assert [found.test(), found.test(), found.test()] == [False, True, True]
    assert request.calls == 40
