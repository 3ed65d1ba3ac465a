"""Constraint: what stands in the way of pins, and by how much it has to give way so that there is a plan with them.

Of what cannot be cut as the pins say (devices, the batch, layers, heads) the least figure above the present one is
named under which some division of devices and batch has the pins, found by trying one after another; of memory, the
smallest limit under which the search finds a plan, found by searching again under 1 % less than the plan found takes,
until there is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from experiments.planning.prices import simulated_step
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError, SbplanError
from strategy.base.units import format_bytes
from strategy.hardware.cluster import Cluster
from strategy.plan.plan import Plan
from strategy.search.contradiction import leave_no_candidate
from strategy.search.search import search
from strategy.space.request import Request

LESS = 0.99
"""The part of a limit under which there has to be no plan for it to be the smallest."""
FARTHEST = 64
"""So many times the present figure is looked at."""
LARGEST_NODE = 8
"""Devices of a node that does not come in several."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """`kind` has to be `needed` instead of `current` (bytes, or a count); `least` if 1 % less was seen not to do."""

    kind: str
    current: int
    needed: int
    least: bool

    def __str__(self) -> str:
        show = format_bytes if self.kind == "memory" else str
        word = "at least" if self.least else "no more than"
        exact = f" ({self.needed} bytes)" if self.kind == "memory" else ""
        return f"{WORDS[self.kind]}: there are {show(self.current)}, it takes {word} {show(self.needed)}{exact}"


WORDS = {
    "memory": "memory per device",
    "devices": "the number of devices",
    "batch": "the global batch",
    "layers": "the model's layers",
    "heads": "the heads of attention",
}
"""Kind of constraint -> what it is called."""


def dividing_constraint(request: Request, budget: Budget) -> Constraint | None:
    """The one figure that stands in the way of pins, if one does: that which has to change least, as a share.

    Of every kind, figures are tried as long as an even part of the budget lasts.
    """
    found = []
    for kind, (current, figures, changed) in _figures(request).items():
        mine = budget.share(1 / 4)
        for figure in figures:
            if mine.is_over():
                break
            if _has_candidate(changed, figure):
                found.append(Constraint(kind, current, figure, least=True))
                break
    return min(found, key=lambda one: one.needed / one.current, default=None)


def relaxed(request: Request, constraint: Constraint, figure: int) -> Request:
    """The request with another figure in the place of the one that is constrained."""
    if constraint.kind == "memory":
        return replace(request, memory_limit_bytes=figure)
    return _figures(request)[constraint.kind][2](figure)


Figures = dict[str, tuple[int, Iterator[int], Callable[[int], Request]]]
"""Kind of constraint -> the present figure, greater ones, and the request with another."""


def _figures(request: Request) -> Figures:
    batch, cluster = request.training.global_batch, request.cost.cluster
    found: Figures = {
        "batch": (
            batch,
            iter(range(batch + 1, FARTHEST * batch + 1)),
            lambda figure: replace(request, training=replace(request.training, global_batch=figure)),
        )
    }
    if not cluster.groups:
        found["devices"] = (request.devices, _more_devices(cluster), lambda figure: _with_devices(request, figure))
    known = {field.name for field in dataclasses.fields(request.model)}  # type: ignore[arg-type]
    for kind in ("layers", "heads"):
        current = getattr(request.model, kind, 0)
        if kind in known and current:
            found[kind] = (
                current,
                iter(range(current + 1, FARTHEST * current + 1)),
                lambda figure, kind=kind: replace(  # type: ignore[misc]
                    request,
                    model=replace(request.model, **{kind: figure}),  # type: ignore[type-var]
                ),
            )
    return found


def _more_devices(cluster: Cluster) -> Iterator[int]:
    """More devices: more of the same nodes; of a single node, also more in it, up to `LARGEST_NODE`."""
    for devices in range(cluster.devices + 1, FARTHEST * cluster.devices + 1):
        if devices % cluster.devices_per_node == 0 or (cluster.nodes == 1 and devices <= LARGEST_NODE):
            yield devices


def _with_devices(request: Request, devices: int) -> Request:
    cluster = request.cost.cluster
    size = cluster.devices_per_node
    nodes, each = (devices // size, size) if devices % size == 0 else (1, devices)
    changed = replace(cluster, nodes=nodes, devices_per_node=each)
    return replace(request, cost=replace(request.cost, cluster=changed))


def _has_candidate(changed: Callable[[int], Request], figure: int) -> bool:
    try:
        return not leave_no_candidate(changed(figure))
    except (SbplanError, ValueError):  # a model that cannot be, such as one whose width no such heads divide
        return False


def memory_constraint(request: Request, hint_bytes: int | None, budget: Budget) -> tuple[Constraint, Plan]:
    """The smallest memory under which the search finds a plan, and that plan.

    Args:
        request: for whose memory there is no plan.
        hint_bytes: a limit that is said to work.
        budget: for all searches.

    Raises:
        OutOfTimeError: no limit that works was found in time.
    """
    current, limit, best = request.memory_limit_bytes, hint_bytes or 2 * request.memory_limit_bytes, None
    while best is None:
        try:
            best = _plan(replace(request, memory_limit_bytes=limit), budget)
        except InfeasibleError as error:
            limit = max(error.smallest_limit or 0, limit + limit // 10)
    least = False
    while not budget.is_over():
        needed = max(best.claims.peak_memory_bytes)
        limit = int(LESS * needed)
        if limit <= current:
            least = True  # for the present memory there is none, as the search has told
            break
        try:
            best = _plan(replace(request, memory_limit_bytes=limit), budget)
        except InfeasibleError:
            least = True
            break
        except OutOfTimeError:
            break
    return Constraint("memory", current, max(best.claims.peak_memory_bytes), least), best


def _plan(request: Request, budget: Budget) -> Plan:
    return search(request, simulate=simulated_step, budget=budget).plan
