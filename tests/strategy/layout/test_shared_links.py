"""What is waited for takes from what goes on beside it as much as both are on the same links."""

from __future__ import annotations

import pytest

from strategy.cost.cost import CostModel
from strategy.layout.shared_links import crossing_pairs, message_ticks, shared_ticks
from strategy.layout.step_times import TICKS
from strategy.sbp.placement import Placement
from strategy.sbp.tensor import Shape
from tests.support.small_plans import cluster

PER_NODE = 8


def shared(mesh: Shape, axes: tuple[str, ...], devices: tuple[int, ...] | None = None) -> int:
    ranks = devices or tuple(range(mesh[0] * (mesh[1] if len(mesh) > 1 else 1)))
    return shared_ticks(CostModel(cluster(64, per_node=PER_NODE), {}), Placement(ranks, mesh, axes))


@pytest.mark.parametrize(("mesh", "axes"), [((8,), ("data",)), ((8,), ("tensor",)), ((8, 1), ("data", "tensor"))])
def test_one_kind_of_axis_shares_nothing(mesh: Shape, axes: tuple[str, ...]) -> None:
    assert shared(mesh, axes) == 0


def test_inside_one_node_all_links_are_shared() -> None:
    assert shared((4, 2), ("data", "tensor")) == shared((4, 2), ("data", "expert")) == TICKS


def test_a_tensor_axis_that_fills_a_node_shares_nothing_with_what_goes_between_nodes() -> None:
    assert shared((8, 8), ("data", "tensor")) == 0


def test_between_nodes_a_part_is_inside_of_them() -> None:
    """Of four ranks on each of two nodes, most of the bytes, at four times the pace."""
    assert TICKS // 4 < shared((8, 2), ("data", "tensor")) < 3 * TICKS // 4
    apart = tuple(rank for data in range(8) for rank in (data, data + PER_NODE))  # tensor pairs on two nodes
    assert shared((8, 2), ("data", "tensor"), apart) == 0


def test_messages_between_nodes_share_what_goes_on_between_nodes() -> None:
    """Of a data axis of eight on two nodes, most of whose time is between these; within one node; without one."""
    cost = CostModel(cluster(64, per_node=PER_NODE), {})
    stages = [tuple(range(first, first + 8)) for first in (0, 8, 16)]
    between = Placement(tuple(range(0, 16, 2)), (8,), ("data",))
    inside, across = message_ticks(cost, between, (False, True))
    assert min(inside, across) > TICKS // 4
    assert inside + across == pytest.approx(TICKS, abs=1)
    assert message_ticks(cost, Placement(stages[0], (8,), ("data",)), (True, False)) == (0, TICKS)
    assert message_ticks(cost, Placement(stages[0], (8,), ("tensor",)), (True, False)) == (0, 0)


def test_stages_hand_on_between_nodes_where_any_of_their_ranks_do() -> None:
    assert crossing_pairs(8, [range(8), range(8, 16)]) == (True, True)
    assert crossing_pairs(8, [range(4), range(4, 8), range(8, 12), range(12, 16)]) == (False, True, False, True)
    assert crossing_pairs(8, [range(6), range(6, 12)]) == (True, True)
    assert crossing_pairs(8, [range(8)]) == (False,)
