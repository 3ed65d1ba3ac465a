"""A box keeps what says of its bounds that they hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strategy.bounds.point import SIZE
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.search.box import Box
from strategy.search.template.outer_approximation import Bound, DualPrices

CONFIG = PlanConfig(1, 1, 1, 1, 1, Schedule.ONE_F_ONE_B)


@dataclass
class Given:
    """In place of a linear program: bounds one after the other, by one cut more each time."""

    bounds: list[Bound]
    cuts: list[int] = field(default_factory=list)

    def bound(self, config: PlanConfig, *, exact: bool) -> Bound:
        self.cuts.append(0)
        return self.bounds.pop(0)


def priced(step_ns: int | None, prices: DualPrices | None) -> Bound:
    return Bound(step_ns, np.zeros(SIZE), prices)


def raised(*bounds: Bound) -> Box:
    within: Any = Given(list(bounds))
    box = Box((CONFIG,), [1.0], within=within)
    for _ in bounds:
        box.raise_bounds(100.0)
        box.solved.clear()
    return box


def test_where_the_solver_gives_up_the_prices_before_still_prove_the_bound() -> None:
    prices = DualPrices((), (), ())
    box = raised(priced(50, prices), priced(0, None))
    assert box.bound_ns == 50
    assert box.prices_of(CONFIG) is prices


def test_better_prices_take_the_place_of_others() -> None:
    first, second = DualPrices((), (), ()), DualPrices((), (1.0,), ())
    box = raised(priced(50, first), priced(60, second))
    assert (box.bound_ns, box.prices_of(CONFIG)) == (60, second)


def test_without_any_prices_closed_forms_are_all_there_is() -> None:
    box = raised(priced(0, None))
    assert (box.bound_ns, box.prices_of(CONFIG)) == (1, None)
