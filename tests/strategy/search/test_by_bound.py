"""Boxes by their bounds: always the first of those that are bounded least, however bounds rise in between."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, cast

from strategy.search.by_bound import ByBound


@dataclass(eq=False)
class Bounded:
    """What stands in for a box."""

    bound_ns: float
    is_open: bool = True


def test_the_first_with_the_least_bound_is_found_while_bounds_rise() -> None:
    rng, closed, rises = random.Random(7), 0, 0
    for _ in range(50):
        boxes = [Bounded(float(rng.randrange(8))) for _ in range(rng.randrange(1, 30))]
        found = ByBound(cast("Any", boxes))
        while any(box.is_open for box in boxes):
            least = min((box for box in boxes if box.is_open), key=lambda box: box.bound_ns)
            assert found.least(lambda box: cast("Any", box).is_open) is cast("Any", least)
            if rng.random() < 0.5:
                least.is_open, closed = False, closed + 1
            else:
                rng.choice(boxes).bound_ns += rng.randrange(1, 4)
                rises += 1
        assert found.least(lambda box: cast("Any", box).is_open) is None
    assert closed > 200
    assert rises > 200
