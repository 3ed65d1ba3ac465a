"""Collectives on two levels: bytes by level, prices as sums of parts, chosen where they are cheaper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.units import to_ns
from strategy.comm.boxing import step_between
from strategy.comm.busiest_rank import most_sent_in_parts, node_groups
from strategy.comm.hierarchical import (
    PARTS,
    NodeSpan,
    by_node,
    counterparts,
    meets_inside,
    nodes_of,
    position_in,
    span_of,
)
from strategy.comm.rank_parts import boxing_task
from strategy.comm.sent_bytes import group_part_nbytes, part_nbytes, sent_nbytes
from strategy.cost.communication import step_features
from strategy.cost.cost import DEVICE, CostModel, port_name, port_rates
from strategy.hardware.cluster import Cluster, Link
from strategy.hardware.presets import find_cluster
from strategy.program.program import ActKind, BoxingTask, time_alone_ns
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, NdSbp, P, Split
from strategy.sbp.tensor import TensorSpec
from tests.support.mixed_clusters import mixed

CHANGES: dict[ActKind, tuple[NdSbp, NdSbp]] = {
    ActKind.ALL_REDUCE: ((P,), (B,)),
    ActKind.REDUCE_SCATTER: ((P,), (Split(0),)),
    ActKind.ALL_GATHER: ((Split(0),), (B,)),
}


def line(ranks: int) -> Placement:
    return Placement(tuple(range(ranks)), (ranks,), ("data",))


def on_nodes(nodes: int, per_node: int) -> Cluster:
    return replace(find_cluster("dgx-a100:1"), nodes=nodes, devices_per_node=per_node)


def test_groups_by_node() -> None:
    cluster = on_nodes(3, 2)
    assert nodes_of(cluster, (0, 1, 2, 3)) == ((0, 1), (2, 3))
    assert nodes_of(cluster, (3, 0, 2, 1)) == ((3, 2), (0, 1))
    for group in ((0, 1), (0, 2, 4), (0, 1, 2), (5,)):
        assert nodes_of(cluster, group) == ()
    assert all(meets_inside(cluster, group) for group in ((0, 1), (3, 0, 2)))
    assert not any(meets_inside(cluster, group) for group in ((4, 2, 0), (5,)))
    assert span_of(cluster, line(4), (0,)) == NodeSpan("inter", per_node=2)
    assert not span_of(cluster, Placement((0, 1, 2, 3), (2, 2), ("a", "b")), (1,)).two_level
    assert not span_of(on_nodes(2, 4), Placement((0, 1, 4, 5, 2, 3, 6, 7), (2, 4), ("a", "b")), (0,)).two_level


def test_a_step_is_as_slow_as_its_slowest_group() -> None:
    """Of six ranks, four to a node, only the second of two groups of three crosses."""
    cluster, placement = on_nodes(2, 4), Placement(tuple(range(6)), (2, 3), ("a", "b"))
    step = step_between((B, P), (B, B))
    assert step is not None
    assert cluster.level(placement.groups(1)[0]) == "intra"
    assert span_of(cluster, placement, (1,)).level == "inter"
    assert step_features(cluster, TensorSpec((6,)), (B, P), step, placement).level == "inter"
    assert span_of(on_nodes(2, 3), placement, (1,)).level == "intra"


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("rows", [24, 17])
def test_both_ways_send_alike_in_all_and_two_levels_less_between_nodes(kind: ActKind, rows: int) -> None:
    nodes, per_node = 2, 4
    cluster, placement, spec = on_nodes(nodes, per_node), line(nodes * per_node), TensorSpec((rows, 3))
    source, target = CHANGES[kind]
    step = step_between(source, target)
    assert step is not None
    flat = boxing_task(spec, source, step, placement, 0)
    levels = replace(flat, nodes=nodes_of(cluster, flat.group))
    total = sum(sent_nbytes(kind, flat, rank, spec) for rank in flat.group)
    assert sum(sent_nbytes(kind, levels, rank, spec) for rank in flat.group) == total
    between = 0
    for rank in flat.group:
        sent = part_nbytes(kind, levels, rank, spec)
        between += sum(n for (_, level), n in zip(PARTS[kind], sent, strict=True) if level == "inter")
    assert between == spec.nbytes * (nodes - 1) * (2 if kind is ActKind.ALL_REDUCE else 1)


@pytest.mark.parametrize("kind", CHANGES)
def test_the_cheaper_way_is_taken(kind: ActKind) -> None:
    """Slow links between nodes favour two levels; links alike, one, which has fewer parts but as many bytes."""
    source, target = CHANGES[kind]
    step = step_between(source, target)
    assert step is not None
    spec, placement = TensorSpec((1 << 20, 8)), line(16)
    two_boxes = CostModel(find_cluster("dgx-a100:2"), {})
    found = two_boxes.step_features(spec, source, step, placement)
    flat = step_features(two_boxes.cluster, spec, source, step, placement)
    assert [(part.kind, part.level) for part in found.parts] == list(PARTS[kind])
    assert two_boxes.seconds(found) < two_boxes.seconds(flat)
    priced = sum(two_boxes.seconds(part) for part in found.parts)
    assert two_boxes.seconds(found) == pytest.approx(priced)
    near = replace(two_boxes.cluster, intra=Link(1e9, 1e-3), inter=Link(1e12, 1e-9))
    assert CostModel(near, {}).step_features(spec, source, step, placement).parts == ()
    one_box = CostModel(find_cluster("dgx-a100:1"), {})
    assert one_box.step_features(spec, source, step, line(8)).parts == ()


@pytest.mark.parametrize("kind", CHANGES)
def test_alone_it_takes_its_price_and_loads_both_ports(kind: ActKind) -> None:
    source, target = CHANGES[kind]
    step = step_between(source, target)
    assert step is not None
    cost, spec, placement = CostModel(find_cluster("dgx-a100:2"), {}), TensorSpec((1 << 16, 8)), line(16)
    features = cost.step_features(spec, source, step, placement)
    task = boxing_task(spec, source, step, placement, 3)
    task = replace(task, nodes=nodes_of(cost.cluster, task.group))
    work = cost.work(features, 3, part_nbytes(kind, task, 3, spec))
    ports = [port_name(level, 3) for level in dict.fromkeys(x for _, x in PARTS[kind])]
    assert [name for name, _ in work.demands] == [*ports, port_name(DEVICE, 3)]
    rates = port_rates(cost.cluster, 16)
    times = [time_alone_ns(nbytes, rates[name]) for name, nbytes in work.demands]
    assert work.latency_ns + max(times) == pytest.approx(to_ns(cost.seconds(features)), abs=2)


def test_ranks_are_told_by_node_and_place() -> None:
    cluster = on_nodes(3, 2)
    nodes = nodes_of(cluster, (3, 0, 2, 1))
    assert [position_in(nodes, rank) for rank in (3, 2, 0, 1)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    task = BoxingTask((3, 0, 2, 1), (), (), nodes=nodes)
    assert [[task.group[at] for at in counterparts(task, place)] for place in (0, 1)] == [[3, 0], [2, 1]]


def test_placements_with_ranks_on_alike_nodes_are_alike() -> None:
    """Nodes are numbered as they appear, over all placements; where they are of several types, these count, too."""
    first, last, across = (Placement(ranks, (2,), ("a",)) for ranks in ((0, 1), (4, 5), (3, 4)))
    cluster = on_nodes(3, 2)
    assert by_node(cluster, first) == by_node(cluster, last) == (0, 0)
    assert by_node(cluster, across) == (0, 1)
    assert by_node(cluster, first, last) == by_node(cluster, last, first) == (0, 0, 1, 1)
    assert by_node(cluster, last, across) == (0, 0, 1, 0)
    unlike = mixed(1.0, 1.0, 3.0)
    assert by_node(unlike, first) != by_node(unlike, last)
    assert by_node(unlike, first, last) != by_node(unlike, last, first)
    assert by_node(unlike, first) == by_node(unlike, Placement((1, 0), (2,), ("a",)))


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("rows", [24, 17, 20])
def test_the_busiest_rank_of_every_part_is_found(kind: ActKind, rows: int) -> None:
    """Also where splits are uneven, and ranks of a node are not neighbours."""
    cluster, spec = on_nodes(2, 4), TensorSpec((rows, 3))
    source, target = CHANGES[kind]
    step = step_between(source, target)
    assert step is not None
    for ranks in (tuple(range(8)), (0, 4, 1, 5, 2, 6, 3, 7)):
        placement = Placement(ranks, (8,), ("data",))
        levels = node_groups(cluster, placement, (0,), 0)
        assert levels is not None
        assert (levels.counts, levels.hops("intra"), levels.hops("inter")) == ((2, 4), 3, 1)
        flat = boxing_task(spec, source, step, placement, 0)
        task = replace(flat, nodes=nodes_of(cluster, flat.group))
        sent = group_part_nbytes(kind, task, spec)
        assert sent == {rank: part_nbytes(kind, task, rank, spec) for rank in ranks}
        assert group_part_nbytes(kind, flat, spec) == {rank: part_nbytes(kind, flat, rank, spec) for rank in ranks}
        busiest = tuple(max(parts) for parts in zip(*sent.values(), strict=True))
        assert most_sent_in_parts(spec, source, step, placement.mesh, levels) == busiest


def test_a_group_inside_of_a_node_has_one_level() -> None:
    assert node_groups(on_nodes(2, 4), line(4), (0,), 0) is None
    assert node_groups(on_nodes(4, 1), line(4), (0,), 0) is None
