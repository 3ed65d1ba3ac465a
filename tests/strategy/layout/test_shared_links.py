"""What is waited for takes from what goes on beside it as much as both are on the same links."""

from __future__ import annotations

import pytest

from strategy.cost.cost import CostModel
from strategy.layout.shared_links import shared_ticks
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
