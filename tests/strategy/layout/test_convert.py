"""Conversions: what they cost is what their steps cost, on the stage that takes them; none is missed."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from strategy.base.units import to_ns
from strategy.comm.boxing import layouts_of
from strategy.comm.chains import Boxing
from strategy.comm.hierarchical import box_size
from strategy.comm.rank_parts import transfer_task
from strategy.cost.cost import CostModel
from strategy.cost.step_prices import step_price
from strategy.hardware.presets import find_cluster
from strategy.layout.convert import Converter, Crossing, cross
from strategy.layout.layout import Home
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, NdSbp, P, Partial, Reduce, Split, format_nd, has_partial, is_legal_layout
from strategy.sbp.tensor import Shape, TensorSpec
from tests.support.random_graphs import random_case

SPEC = TensorSpec((6, 4))
NODES_OF_FOUR = replace(find_cluster("dgx-a100:4"), devices_per_node=4)


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
        here, layout, spent = 0, source, [0.0, 0.0, 0.0]
        for step in found.steps(SPEC, home, stage, target):
            if step.kind is ActKind.TRANSFER:
                assert not has_partial(layout)
                assert not has_partial(step.target)
                seconds = found.cost.transfer_seconds(
                    SPEC, layout, found.placements[0], step.target, found.placements[1]
                )
                spent[1] += to_ns(seconds)
                here = 1
            else:
                features = found.cost.step_features(SPEC, layout, step, found.placements[here])
                spent[2 * here] += to_ns(found.cost.seconds(features))
            layout = step.target
            assert is_legal_layout(SPEC.shape, layout, mesh)
        assert (here, layout) == (stage, target), format_nd(target)
        assert found.prices_ns(SPEC, home, stage, target) == tuple(spent)
        assert stage == 1 or spent[1:] == [0, 0]


def test_staying_costs_nothing() -> None:
    found = converter((2, 2), 0)
    for layout in layouts_of(SPEC, (2, 2)):
        assert found.steps(SPEC, Home(0, layout), 0, layout) == ()
        assert found.prices_ns(SPEC, Home(0, layout), 0, layout) == (0.0, 0.0, 0.0)


def cheapest(
    cost: CostModel, spec: TensorSpec, source: NdSbp, here: Placement, target: NdSbp, there: Placement
) -> Crossing:
    """The conversion that costs least."""

    def moving(left: NdSbp, right: NdSbp) -> float:
        return cost.transfer_seconds(spec, left, here, right, there)

    def copying(layout: NdSbp, ranks: Placement) -> float:
        return cost.copy_seconds(spec, layout, ranks, there.space)

    home, away = (Boxing(placement, step_price(cost, placement)) for placement in (here, there))
    return cross(spec, source, home, target, away, moving, copying)


def crossing(source: NdSbp, target: NdSbp, here: Placement, there: Placement) -> tuple[list[ActKind], float]:
    """Kinds of the steps between two placements on a cluster of nodes of four, and their price in seconds."""
    cost = CostModel(NODES_OF_FOUR, {})
    spec = TensorSpec((1 << 12, 1 << 10))

    found = cheapest(cost, spec, source, here, target, there)
    return [step.kind for step in found.steps], found.price


MESHES: list[tuple[Shape, Shape]] = [
    *(((4,), (4,)), ((2,), (4,)), ((4,), (2,))),
    *(((2, 2), (4,)), ((2, 2), (2, 2)), ((3,), (2, 2))),
]


@pytest.mark.parametrize(("here", "there"), MESHES)
def test_a_tensor_goes_over_slow_links_once_and_every_rank_sends_its_share(here: Shape, there: Shape) -> None:
    """Whatever the layouts on both sides, terms and copies included, and however many ranks there are."""
    spec, cost = TensorSpec((1 << 12, 3 << 10)), CostModel(NODES_OF_FOUR, {})
    sender, receiver = mesh_of(0, here), mesh_of(4, there)
    for source, target in itertools.product(layouts_of(spec, here), layouts_of(spec, there)):
        layout, sent = source, dict.fromkeys(sender.devices, 0)
        for step in cheapest(cost, spec, source, sender, target, receiver).steps:
            if step.kind is ActKind.TRANSFER:
                for message in transfer_task(spec, layout, sender, step.target, receiver).messages:
                    sent[message.source] += spec.sent_nbytes(box_size(message.box))
            layout = step.target
        assert sum(sent.values()) == spec.nbytes, (format_nd(source), format_nd(target))
        assert max(sent.values()) <= 1.01 * spec.nbytes / len(sent), (format_nd(source), format_nd(target))


def mesh_of(first: int, mesh: Shape) -> Placement:
    return Placement(tuple(range(first, first + math.prod(mesh))), mesh, ("data", "tensor")[: len(mesh)])


def line(first: int, ranks: int) -> Placement:
    return Placement(tuple(range(first, first + ranks)), (ranks,), ("data",))


def test_copies_travel_once_where_nodes_are_far() -> None:
    """A piece per rank goes over the slow links; the pieces are put together inside the other node."""
    pieces = [ActKind.TRANSFER, ActKind.ALL_GATHER]
    for source in (B, Split(0)):
        assert crossing((source,), (B,), line(0, 4), line(4, 4))[0] == pieces
    assert crossing((B,), (B,), line(0, 2), line(4, 4))[0] == pieces
    assert crossing((B,), (Split(0),), line(0, 4), line(4, 2))[0] == [ActKind.SLICE, ActKind.TRANSFER]


def test_terms_are_reduced_where_they_are_and_made_where_they_go() -> None:
    to_terms, _ = crossing((P,), (P,), line(0, 4), line(4, 4))
    assert to_terms == [ActKind.REDUCE_SCATTER, ActKind.TRANSFER, ActKind.SLICE]
    largest = Partial(Reduce.MAX)
    kinds, seconds = crossing((largest,), (B,), line(0, 4), line(4, 2))
    assert kinds == [ActKind.REDUCE_SCATTER, ActKind.TRANSFER, ActKind.ALL_GATHER]
    assert seconds == crossing((P,), (B,), line(0, 4), line(4, 2))[1]


def test_the_same_ranks_in_another_mesh_keep_what_they_hold() -> None:
    flat, folded = line(0, 8), Placement(tuple(range(8)), (2, 4), ("data", "tensor"))
    for source, target in (((Split(0),), (Split(0), Split(0))), ((B,), (B, B)), ((B,), (Split(0), B))):
        kinds, seconds = crossing(source, target, flat, folded)
        assert kinds == [ActKind.TRANSFER]
        assert seconds <= find_cluster("dgx-a100:4").inter.latency_s + 1e-12
