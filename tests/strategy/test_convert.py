"""Conversions: what they cost is what their steps cost, on the stage that takes them; none is missed."""

from __future__ import annotations

import itertools

import pytest

from strategy.boxing import layouts_of
from strategy.convert import Converter
from strategy.layout import Home
from strategy.placement import Placement
from strategy.program import ActKind
from strategy.sbp import format_nd, has_partial, is_legal_layout
from strategy.tensor import TensorSpec
from strategy.units import to_ns
from tests.random_graphs import random_case

SPEC = TensorSpec((6, 4))


def converter(mesh: tuple[int, int], seed: int) -> Converter:
    size = mesh[0] * mesh[1]
    placements = tuple(Placement(tuple(range(s * size, (s + 1) * size)), mesh, ("data", "tensor")) for s in range(2))
    return Converter(random_case(seed).cost, placements)


@pytest.mark.parametrize("mesh", [(2, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("stage", [0, 1])
def test_prices_are_those_of_the_steps(mesh: tuple[int, int], stage: int) -> None:
    found = converter(mesh, stage)
    for source, target in itertools.product(layouts_of(SPEC, mesh), repeat=2):
        home = Home(0, source)
        here, layout, spent = 0, source, [0.0, 0.0]
        for step in found.steps(SPEC, home, stage, target):
            if step.kind is ActKind.TRANSFER:
                assert not has_partial(layout)
                assert not has_partial(step.target)
                seconds = found.cost.transfer_seconds(
                    SPEC, layout, found.placements[0], step.target, found.placements[1]
                )
                spent[0] += to_ns(seconds)
                here = 1
            else:
                price = found.cost.step_price(found.placements[here])
                spent[here] += to_ns(price(SPEC, layout, step))
            layout = step.target
            assert is_legal_layout(SPEC.shape, layout, mesh)
        assert (here, layout) == (stage, target), format_nd(target)
        assert found.prices_ns(SPEC, home, stage, target) == (spent[0], spent[1]) or stage == 0 == spent[1]
        assert sum(found.prices_ns(SPEC, home, stage, target)) == sum(spent)


def test_staying_costs_nothing() -> None:
    found = converter((2, 2), 0)
    for layout in layouts_of(SPEC, (2, 2)):
        assert found.steps(SPEC, Home(0, layout), 0, layout) == ()
        assert found.prices_ns(SPEC, Home(0, layout), 0, layout) == (0.0, 0.0)
