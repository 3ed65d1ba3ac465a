"""Features of communication: which of its bytes pass links between nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.comm.boxing import BoxingStep, step_between
from strategy.comm.hierarchical import box_size, span_of
from strategy.comm.rank_parts import boxing_task
from strategy.cost.communication import step_features
from strategy.cost.cost import CostModel
from strategy.hardware.cluster import Cluster, Link
from strategy.hardware.presets import find_cluster
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, NdSbp, P, Sbp, Split
from strategy.sbp.tensor import TensorSpec, intersect

CHANGES: dict[ActKind, tuple[NdSbp, NdSbp]] = {
    ActKind.ALL_REDUCE: ((P,), (B,)),
    ActKind.REDUCE_SCATTER: ((P,), (Split(0),)),
    ActKind.ALL_GATHER: ((Split(0),), (B,)),
    ActKind.ALL_TO_ALL: ((Split(0),), (Split(1),)),
    ActKind.ROTATE: ((Split(0),), (Split(0, 1),)),
}


def on_nodes(nodes: int, per_node: int) -> Cluster:
    return replace(find_cluster("dgx-a100:1"), nodes=nodes, devices_per_node=per_node)


@pytest.mark.parametrize(("nodes", "per_node", "mesh", "axis"), [(2, 4, (8,), 0), (4, 2, (8,), 0), (3, 4, (6, 2), 0)])
def test_what_goes_to_all_at_once_passes_links_between_nodes_in_part(
    nodes: int, per_node: int, mesh: tuple[int, ...], axis: int
) -> None:
    """As much of it as goes to ranks of other nodes, counted box by box; the rest passes links inside."""
    cluster, ranks = on_nodes(nodes, per_node), nodes * per_node
    placement, spec = Placement(tuple(range(ranks)), mesh, tuple("ab"[: len(mesh)])), TensorSpec((ranks**2, ranks))
    source: list[Sbp] = [B] * len(mesh)
    target = source.copy()
    source[axis], target[axis] = Split(0), Split(1)
    step = step_between(tuple(source), tuple(target))
    assert step is not None
    found = step_features(cluster, spec, tuple(source), step, placement)
    task = boxing_task(spec, tuple(source), step, placement, 0)
    sent = {
        rank: box_size(both)
        for rank, box in zip(task.group, task.target_boxes, strict=True)
        if (both := intersect(task.source_boxes[0], box)) is not None and rank
    }
    far = sum(size for rank, size in sent.items() if cluster.level((0, rank)) == "inter")
    assert 0 < far < sum(sent.values())
    assert found.crossing == pytest.approx(far / sum(sent.values()))
    cost, apart = CostModel(cluster, {}), replace(found, near=0)
    assert cost.coefficients_of(found).s_per_byte == pytest.approx(
        found.crossing * cost.coefficients_of(apart).s_per_byte
    )
    slow_inside = CostModel(replace(cluster, intra=Link(1e6, 1e-6)), {})
    inside = slow_inside.coefficients_of(replace(found, level="intra", hops=found.near, near=0)).s_per_byte
    assert slow_inside.coefficients_of(found).s_per_byte == pytest.approx((1 - found.crossing) * inside)


def test_only_what_goes_to_all_alike_counts_in_part() -> None:
    """Through memory that is every collective but a rotation; NCCL's go round in rings but for all-to-alls."""
    gpus = on_nodes(2, 2)
    cores = replace(gpus, device=replace(gpus.device, backend="numpy"))
    square = Placement(tuple(range(4)), (2, 2), ("a", "b"))
    line = Placement(tuple(range(4)), (4,), ("a",))
    for kind, (source, target) in CHANGES.items():
        step = step_between(source, target)
        assert step is not None
        assert step.kind is kind
        far = [step_features(on, TensorSpec((8, 8)), source, step, line).near for on in (gpus, cores)]
        assert far == [int(kind is ActKind.ALL_TO_ALL), int(kind is not ActKind.ROTATE)]
        assert step_features(cores, TensorSpec((8, 8)), source, step, Placement((0, 1, 2), (3,), ("a",))).near == 0
    swapped = BoxingStep(ActKind.ALL_TO_ALL, (0, 1), (Split(1), Split(0)))
    assert step_features(cores, TensorSpec((8, 8)), (Split(0), Split(1)), swapped, square).near == 0


def test_where_stages_share_nodes_unlike_all_bytes_count_between_nodes() -> None:
    """Four ranks on nodes of three: those of the first stage lie 3 + 1, those of the second 2 + 2."""
    nodes = on_nodes(4, 3)
    step = step_between(*CHANGES[ActKind.ALL_TO_ALL])
    assert step is not None
    stages = [Placement(tuple(range(first, first + 4)), (4,), ("a",)) for first in (0, 4)]
    assert [span_of(nodes, one, (0,)).per_node for one in stages] == [1, 2]
    assert [step_features(nodes, TensorSpec((8, 8)), (Split(0),), step, one).near for one in stages] == [0, 0]
