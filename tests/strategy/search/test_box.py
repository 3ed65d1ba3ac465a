"""A box keeps what says of its bounds that they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strategy.bounds.point import SIZE
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.search.box import HARDEST, LIGHTER, Box
from strategy.search.template.outer_approximation import Bound, DualPrices

CONFIG = PlanConfig(1, 1, 1, 1, 1, Schedule.ONE_F_ONE_B)


@dataclass
class Given:
    """In place of a linear program: bounds one after the other, by one cut more each time."""

    bounds: list[Bound]
    count: int = 0

    def bound(self, config: PlanConfig, *, exact: bool, enough_ns: float) -> Bound:
        self.count += 1
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


def weighed(tries: Sequence[tuple[float, float]], held: float = 1.1) -> list[float]:
    """How hard bytes weigh after each of these tries, (fastest, fastest that fits); ends where it is settled.

    `held`: the part of the memory that the lightest of each holds.
    """
    box, found = Box((CONFIG,), [1.0]), []
    for least_ns, fitting_ns in tries:
        is_settled = box.weigh(least_ns, fitting_ns, held, 0.03)
        found.append(box.harder)
        if is_settled:
            break
    return found


def test_bytes_weigh_more_until_what_is_fast_fits() -> None:
    assert weighed([(30, math.inf), (31, math.inf), (31, 31)]) == [1, 2, 2]


def test_where_all_is_far_from_fitting_a_step_is_skipped_and_looked_at_on_the_way_back() -> None:
    assert weighed([(30, math.inf), (40, math.inf), (66, 66), (41, 41)], held=1.7) == [2, 4, 3, 3]


def test_bytes_weigh_less_again_where_what_fits_takes_much_longer() -> None:
    """The first just does not fit; much less takes twice as long; half way between it fits and is as fast."""
    assert weighed([(30, math.inf), (66, 66), (30.4, 30.4)]) == [1, 0.5, 0.5]


def test_between_what_does_not_fit_and_what_does_the_way_is_halved() -> None:
    assert weighed([(30, math.inf), (66, 66), (40, math.inf), (50, 50), (41, 41)]) == [1, 0.5, 0.75, 0.625, 0.625]


def test_proposals_begin_anew() -> None:
    box = Box((CONFIG,), [1.0], tries=3, harder=2.0, too_light=(1.0, 30.0), hard_enough=2.0, is_proposed=True)
    box.weigh_anew()
    assert (box.tries, box.harder, box.too_light, box.hard_enough, box.is_proposed) == (0, 0.0, None, math.inf, False)


def test_proposals_that_become_no_lighter_are_given_up_after_one_where_little_else_counts() -> None:
    box = Box((CONFIG,), [1.0])
    assert not box.is_lightest(1.6)
    assert not box.is_lightest((1 - 2 * LIGHTER) * 1.6)
    assert box.harder == 0.0, "lighter ones have come"
    assert not box.is_lightest(1.6)
    assert box.harder == HARDEST
    assert box.is_lightest(1.6)
    box.weigh_anew()
    assert not box.is_lightest(1.6), "plans have shown something else"
