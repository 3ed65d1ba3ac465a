"""Contradictions: a smallest set of pins that leave nothing, whatever leaves nothing."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError, InputError
from strategy.layout.config import Recompute
from strategy.layout.schedule import Schedule
from strategy.sbp.sbp import B, Partial, Split
from strategy.search.contradiction import (
    Pin,
    contradictory,
    leave_no_candidate,
    leave_no_signature,
    only,
    single_pins,
    smallest_contradiction,
)
from strategy.space.request import Pins
from tests.strategy.search.test_deep_search import asked

PINS = Pins(dp=4, tp=2, pp=2, micro_batch=1, recompute=Recompute.FULL, zero_stage=1, layouts={"*.fc1.weight": (B, B)})


def test_pins_are_told_apart_and_put_together_again() -> None:
    pins = single_pins(PINS)

    assert only(pins) == PINS
    assert [str(pin) for pin in pins[-2:]] == ["zero_stage = 1", "[sbp] '*.fc1.weight' = B.B"]
    assert only(()) == Pins()
    with pytest.raises(InputError, match="no such schedule"):
        only([Pin("virtual_stages", None, 3)])


@pytest.mark.parametrize("seed", range(40))
def test_no_smaller_set_contradicts(seed: int) -> None:
    """Random sets that contradict each other; all subsets are looked at."""
    draw = random.Random(seed)
    pins = single_pins(PINS)
    cores = [frozenset(draw.sample(pins, draw.randint(1, 4))) for _ in range(draw.randint(1, 3))]

    def contradict(some: Pins) -> bool:
        return any(core.issubset(single_pins(some)) for core in cores)

    found, proved = smallest_contradiction(PINS, contradict, UNLIMITED)

    least = next(n for n in range(8) for few in itertools.combinations(pins, n) if contradict(only(few)))
    assert proved
    assert contradict(only(found))
    assert len(found) == least


def test_in_want_of_time_it_says_less() -> None:
    """All pins still contradict each other; that there is no smaller set is not claimed."""
    found, proved = smallest_contradiction(PINS, lambda _: True, Budget.of(-1))

    assert (set(found), proved) == (set(single_pins(PINS)), False)


def test_degrees_that_cannot_be_together() -> None:
    """16 devices and 32 samples: neither of both is too many alone."""
    wrong = asked(pins=Pins(dp=8, tp=4, micro_batch=1, schedule=Schedule.ZB_H1))
    error = contradictory(wrong, leave_no_candidate, UNLIMITED)

    assert isinstance(error, InfeasibleError)
    assert "has dp = 8 and tp = 4: the smallest set of pins that contradict each other" in str(error)


def test_layouts_that_no_op_has() -> None:
    """A bias of terms is added nowhere; the other pins do not matter."""
    layouts = {"*.fc1.weight": (B, Split(1)), "*.fc1.bias": (B, Partial())}
    wrong = asked(pins=Pins(dp=2, tp=2, pp=1, layouts=layouts))
    small = replace(wrong, cost=replace(wrong.cost, cluster=replace(wrong.cost.cluster, nodes=1, devices_per_node=4)))

    assert leave_no_signature(small)
    assert "fc1.bias" in str(contradictory(small, leave_no_signature, UNLIMITED))
