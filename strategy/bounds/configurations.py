"""Configurations with what bounds each: arrays over all that may be chosen (`strategy.space.candidates`).

Those that differ in schedule alone share a *mesh group*, for which the choice of layouts is one problem. Bounds are of
`least_work` and `makespan_bound`: of time, over all layouts and all cuts into stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strategy.base.budget import UNLIMITED, Budget
from strategy.layout.config import PlanConfig
from strategy.space.candidates import listed
from strategy.space.request import Request


@dataclass(frozen=True, slots=True)
class MeshGroup:
    """Configurations with one mesh, micro-batch and way to save memory.

    Attributes:
        configs: these.
        bounds_ns: the least nanoseconds of each.
        place: of the group, in the order in which a space is listed.
    """

    configs: tuple[PlanConfig, ...]
    bounds_ns: tuple[int, ...]
    place: int

    @property
    def bound_ns(self) -> int:
        """Of all of them."""
        return min(self.bounds_ns)

    @property
    def config(self) -> PlanConfig:
        """The one with the least bound."""
        return self.configs[self.bounds_ns.index(self.bound_ns)]


CHUNK = 2**14
"""So many groups are bounded at once: it takes a few seconds."""


def mesh_groups(
    request: Request, bounds_ns: Callable[[Sequence[PlanConfig]], Sequence[int]], budget: Budget = UNLIMITED
) -> list[MeshGroup]:
    """All configurations, in groups, least bound first; `bounds_ns`: what steps of configurations take at least.

    Raises:
        OutOfTimeError: the time was up before all were bounded, of more than `CHUNK` groups.
    """
    found: list[MeshGroup] = []
    groups = iter(listed(request))
    while chunk := tuple(itertools.islice(groups, CHUNK)):
        if found:  # the first of them are there however short the time is
            budget.check()
        bounds = iter(bounds_ns([config for group in chunk for config in group]))
        found += [
            MeshGroup(one, tuple(itertools.islice(bounds, len(one))), len(found) + i) for i, one in enumerate(chunk)
        ]
    return sorted(found, key=_order)


def _order(group: MeshGroup) -> tuple[int, int, int, int]:
    """Least bound first, and of these fewest stages, smallest tensor degree and micro-batch: a group's are alike."""
    config = group.configs[0]
    return group.bound_ns, config.pp, config.tp, config.micro_batch
