"""Contradiction: a smallest set of pins that leave no plan together.

What some pins leave, fewer leave too. So pins are dropped one by one as long as the rest still contradict each other;
none of those that stay can be spared. Then all smaller sets are tried, fewest first, as long as there is time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from strategy.base.budget import Budget
from strategy.base.errors import ContradictionError, InfeasibleError, InputError
from strategy.layout.config import PlanConfig
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.candidates import candidates_of, divisions
from strategy.space.request import Pins, Request

TABLES = {"layouts": "sbp", "stages": "stage", "placements": "placement"}
"""Field of `Pins` that maps patterns -> its section in a pin file."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One pin: a field of `Pins`, and which entry of it, if it is a table."""

    field: str
    key: str | None
    value: object

    def __str__(self) -> str:
        if self.key is None:
            return f"{self.field} = {self.value}"
        value = ".".join(map(str, self.value)) if isinstance(self.value, tuple) else self.value
        return f"[{TABLES[self.field]}] {self.key!r} = {value}"


def single_pins(pins: Pins) -> tuple[Pin, ...]:
    """What is pinned, one by one."""
    found = []
    for field in fields(Pins):
        value, default = getattr(pins, field.name), getattr(Pins(), field.name)
        if field.name in TABLES:
            found += [Pin(field.name, key, one) for key, one in value.items()]
        elif value != default:
            found.append(Pin(field.name, None, value))
    return tuple(found)


def only(kept: Sequence[Pin]) -> Pins:
    """These pins and no others.

    Raises:
        InputError: they make no sense without others.
    """
    tables: dict[str, dict[str, object]] = {name: {} for name in TABLES}
    settings: dict[str, object] = {}
    for pin in kept:
        if pin.key is None:
            settings[pin.field] = pin.value
        else:
            tables[pin.field][pin.key] = pin.value
    return Pins(**settings, **tables)  # type: ignore[arg-type]


def smallest_contradiction(
    pins: Pins, contradict: Callable[[Pins], bool], budget: Budget
) -> tuple[tuple[Pin, ...], bool]:
    """(a smallest set of pins that contradict each other, whether there was time to prove that).

    Args:
        pins: which do contradict each other.
        contradict: whether pins leave nothing.
        budget: as long as this lasts, pins are dropped, and then smaller sets are tried.
    """

    def do(some: Sequence[Pin]) -> bool:
        try:
            return contradict(only(some))
        except InputError:  # without the others they mean nothing
            return False

    everything = single_pins(pins)
    kept = list(everything)
    for pin in everything:
        without = [one for one in kept if one != pin]
        if not budget.is_over() and do(without):
            kept = without
    for size in range(1, len(kept)):
        for few in itertools.combinations(everything, size):
            if budget.is_over():
                return tuple(kept), False
            if do(few):
                return few, True
    return tuple(kept), not budget.is_over()


def contradictory(
    request: Request, leave_nothing: Callable[[Request], bool], budget: Budget, because: str = ""
) -> ContradictionError:
    """What to say of pins that leave nothing: a smallest set of them, as far as there is time.

    Args:
        request: with the pins.
        leave_nothing: whether those of a request do.
        budget: for finding out which.
        because: what is known of why, in lines.
    """

    def contradict(some: Pins) -> bool:
        return leave_nothing(replace(request, pins=some))

    found, proved = smallest_contradiction(request.pins, contradict, budget)
    names = " and ".join(map(str, found))
    where = f"{request.devices} devices with a global batch of {request.training.global_batch}"
    if len(found) == 1:
        return ContradictionError(
            f"no plan for {where} has {names}{because}", hint="pin another value, or leave it open"
        )
    word = "the smallest set of pins that contradict each other" if proved else "these pins contradict each other"
    return ContradictionError(f"no plan for {where} has {names}: {word}{because}", hint="relax one of them")


def leave_no_candidate(request: Request) -> bool:
    """Whether no division of devices and batch has these pins."""
    return next(iter(candidates_of(request)), None) is None


def leave_no_signature(request: Request) -> bool:
    """Whether under every division of devices and batch some op is left without signature."""
    return not any(_has_signatures(request, first) for first, *_ in divisions(request))


def _has_signatures(request: Request, config: PlanConfig) -> bool:
    try:
        space = space_of(request, config, free_rules(config))
        return all(space.options(op) for op in space.graph.ops)
    except InfeasibleError:
        return False
