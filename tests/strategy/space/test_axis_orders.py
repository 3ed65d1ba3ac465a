"""Axis orders: which ranks share a node, and which orders are the same."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.errors import InputError
from strategy.cost.cost import CostModel
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey
from strategy.hardware.cluster import Cluster, Link
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.passes.training import Training
from strategy.program.program import ActKind
from strategy.space.axis_orders import axis_orders, placements_of, ranks_of, strides_of, unlike_stages
from strategy.space.candidates import candidates_of
from tests.support.small_plans import cluster, request

SLOW, FAST = Link(1e8, 1e-5), Link(1e9, 1e-6)


def config(dp: int, tp: int, pp: int = 1, *, ep: int = 1, strides: tuple[int, ...] = ()) -> PlanConfig:
    return PlanConfig(dp, tp, pp, 1, 4, Schedule.ONE_F_ONE_B, ep=ep, strides=strides)


def on_nodes(nodes: int, per_node: int, within: Link = SLOW, between: Link = FAST) -> Cluster:
    return replace(cluster(nodes * per_node, per_node=per_node), intra=within, inter=between)


def test_two_nodes_of_two_as_they_are_drawn() -> None:
    inner, outer = config(2, 2), config(2, 2, strides=strides_of(config(2, 2), ("tensor", "data")))
    assert ranks_of(inner).tolist() == [[[0, 1], [2, 3]]]
    assert ranks_of(outer).tolist() == [[[0, 2], [1, 3]]]
    assert axis_orders(on_nodes(2, 2), inner) == ((), outer.strides)
    assert [placement.devices for placement in placements_of(outer)] == [(0, 2, 1, 3)]


def test_what_is_left_out_is_outermost() -> None:
    one = config(4, 2, 3, ep=2)
    assert strides_of(one, ()) == strides_of(one, ("tensor",)) == strides_of(one, ("data", "expert", "tensor")) == ()
    assert strides_of(one, ("pipeline",)) == (1, 12, 6, 3)
    assert strides_of(one, ("tensor", "context", "data")) == (8, 1, 4, 2)


def orders_listed(on: Cluster, **measured: Coefficients) -> set[tuple[int, ...]]:
    """The strides of all that a search on a cluster chooses from."""
    coefficients = {CostKey(ActKind(kind), level="intra"): constants for kind, constants in measured.items()}
    asked = request(on.devices, Training(global_batch=8, num_micro_batches=1))
    return {one.strides for one in candidates_of(replace(asked, cost=CostModel(on, coefficients)))}


@pytest.mark.parametrize(("within", "between"), [(FAST, SLOW), (FAST, Link(6e8, 1e-6)), (FAST, Link(1e8, 1e-6))])
def test_where_links_inside_are_faster_nothing_else_is_looked_at(within: Link, between: Link) -> None:
    assert orders_listed(on_nodes(2, 4, within, between)) == {()}


def test_where_they_are_not_other_orders_are_looked_at() -> None:
    """By the price of what is sent: as the data sheet has it, or as it was measured."""
    assert len(orders_listed(on_nodes(2, 4))) > 1
    assert len(orders_listed(on_nodes(2, 4, FAST, FAST))) > 1  # of what goes to all at once, some passes either
    assert len(orders_listed(on_nodes(2, 4, FAST, SLOW), all_gather=Coefficients(1.0, 0.0, 1e-6))) > 1


def test_on_one_level_all_orders_are_one() -> None:
    for nodes, per_node in ((1, 8), (8, 1)):
        assert orders_listed(on_nodes(nodes, per_node)) == {()}


def test_every_sharing_of_nodes_is_there_once() -> None:
    """Of random meshes, against the sets of coordinates of which each order makes up nodes."""
    rng, several = random.Random(3), 0
    for _ in range(60):
        per_node, nodes = rng.choice((2, 4, 6, 8)), rng.choice((2, 3, 4))
        devices = per_node * nodes
        dp = rng.choice([d for d in range(1, devices + 1) if devices % d == 0])
        tp = rng.choice([d for d in range(1, devices + 1) if devices // dp % d == 0])
        one = config(dp, tp, devices // dp // tp)
        found = axis_orders(on_nodes(nodes, per_node), one)
        sharing = []
        for strides in found:
            ranks = ranks_of(replace(one, strides=strides))
            assert sorted(ranks.ravel().tolist()) == list(range(devices))
            held = [frozenset(map(tuple, np.argwhere(ranks // per_node == node).tolist())) for node in range(nodes)]
            sharing.append(frozenset(held))
        assert len(set(sharing)) == len(found) >= 1
        assert found[0] == ()
        sizes = [size for size in (one.pp, *one.mesh) if size > 1]
        assert len(found) <= math.factorial(len(sizes))
        several += len(found) > 1
    assert several > 30


def test_stages_of_half_and_whole_nodes_share_them_alike_and_others_do_not() -> None:
    firsts = {}
    for dp, tp, pp in ((2, 2, 6), (8, 2, 3), (3, 2, 8), (4, 3, 4)):
        firsts[dp, tp, pp] = [stage.devices[0] for stage in unlike_stages(on_nodes(6, 8), config(dp, tp, pp))]
    assert firsts == {(2, 2, 6): [0], (8, 2, 3): [0], (3, 2, 8): [0, 6, 12], (4, 3, 4): [0, 12]}


@pytest.mark.parametrize("strides", [(4, 2), (1, 1, 1), (0, 2, 1), (1, 2, 4, 8), (2, 1, 1)])
def test_strides_that_put_two_coordinates_on_a_rank_are_refused(strides: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="no order of the axes"):
        config(2, 2, 2, strides=strides)
