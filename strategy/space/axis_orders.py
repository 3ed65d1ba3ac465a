"""Axis orders: how the stages and the axes of their mesh lie over the ranks of a cluster.

With two nodes of two ranks each, a data axis of two and a tensor axis of two:

    tensor innermost    node 0: d0 t0, d0 t1    node 1: d1 t0, d1 t1
    data innermost      node 0: d0 t0, d1 t0    node 1: d0 t1, d1 t1

What exchanges most belongs inside of nodes where links are faster there (`CostModel.is_faster_inside`), and that is
what the order of the axes' names says; where they are not, a search looks at the others, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.hardware.cluster import Cluster
from strategy.layout.config import PlanConfig
from strategy.layout.shared_links import crossing_pairs
from strategy.sbp.placement import Placement
from strategy.sbp.tensor import Shape

PIPELINE = "pipeline"
"""What stages are called beside the axes of a mesh."""
NAMES = (PIPELINE, "replica", "data", "expert", "context", "tensor")
"""Outermost first."""


def axis_orders(cluster: Cluster, config: PlanConfig) -> tuple[tuple[int, ...], ...]:
    """The strides of every order that differs in which ranks share a node; none for that of the names."""
    return _axis_orders(cluster.devices_per_node, tuple(_sizes(config).items()))


@lru_cache(maxsize=1 << 12)
def _axis_orders(per_node: int, sizes: tuple[tuple[str, int], ...]) -> tuple[tuple[int, ...], ...]:
    found: dict[bytes, tuple[int, ...]] = {}
    for order in itertools.permutations(name for name, size in sizes if size > 1):
        strides = _strides_of(dict(sizes), order)
        found.setdefault(_relabelled(_ranks(tuple(size for _, size in sizes), strides).ravel() // per_node), strides)
    return tuple(found.values())


def strides_of(config: PlanConfig, order: Sequence[str]) -> tuple[int, ...]:
    """The strides of axes that lie in an order, outermost first, inside of all that it leaves out; see `PlanConfig`."""
    return _strides_of(_sizes(config), order)


def _strides_of(sizes: Mapping[str, int], order: Sequence[str]) -> tuple[int, ...]:
    stride = 1
    outside = [name for name in sizes if name not in order]
    strides = dict.fromkeys(sizes, 1)
    for name in reversed([*outside, *order]):
        if sizes.get(name, 1) > 1:
            strides[name], stride = stride, stride * sizes[name]
    several = [at for at, size in enumerate(sizes.values()) if size > 1]
    found, in_order = tuple(strides.values()), _in_order(tuple(sizes.values()))
    return () if all(found[at] == in_order[at] for at in several) else found


def ranks_of(config: PlanConfig) -> npt.NDArray[np.int64]:
    """(stages, *mesh): the rank of every coordinate."""
    return _ranks((config.pp, *config.mesh), config.strides)


def _ranks(shape: Shape, strides: tuple[int, ...]) -> npt.NDArray[np.int64]:
    return np.tensordot(np.array(strides or _in_order(shape), np.int64), np.indices(shape, np.int64), axes=1)


def _sizes(config: PlanConfig) -> dict[str, int]:
    return dict(zip((PIPELINE, *config.axes), (config.pp, *config.mesh), strict=True))


def _in_order(shape: Shape) -> tuple[int, ...]:
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))


def _relabelled(nodes: npt.NDArray[np.int64]) -> bytes:
    """Nodes by the order in which they come first."""
    _, first, inverse = np.unique(nodes, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].tobytes()


def unlike_stages(cluster: Cluster, config: PlanConfig) -> tuple[Placement, ...]:
    """The first stage, and of those whose ranks share nodes in other ways the first of each kind.

    Where a stage is no whole number of nodes, nor a node one of stages, some lie in one node and others across two.
    """
    found: dict[bytes, Placement] = {}
    for stage in placements_of(config):
        nodes = np.array(stage.devices) // cluster.devices_per_node
        found.setdefault(_relabelled(nodes), stage)
    return tuple(found.values())


def stages_crossing(cluster: Cluster, config: PlanConfig) -> tuple[bool, ...]:
    """(stages,): whether what each hands to the next goes between nodes."""
    return _stages_crossing(cluster.devices_per_node, config.pp, config.mesh, config.strides, config.stage_order)


@lru_cache(maxsize=1 << 12)
def _stages_crossing(
    per_node: int, pp: int, mesh: Shape, strides: tuple[int, ...], stage_order: tuple[int, ...]
) -> tuple[bool, ...]:
    ranks = _ranks((pp, *mesh), strides).reshape(pp, -1)
    return crossing_pairs(per_node, ranks[list(stage_order)] if stage_order else ranks)


def first_stage(config: PlanConfig) -> Placement:
    """The mesh of the first one, made once for all that lie there alike."""
    share = config.stage_order[0] if config.stage_order else 0
    return _first_stage(config.mesh, config.axes, config.strides[1:], share)


@lru_cache(maxsize=1024)
def _first_stage(mesh: Shape, axes: tuple[str, ...], strides: tuple[int, ...], share: int) -> Placement:
    if strides:
        ranks = np.tensordot(np.array(strides, np.int64), np.indices(mesh, np.int64), axes=1)
        return Placement(tuple(ranks.ravel().tolist()), mesh, axes)
    size = math.prod(mesh)
    return Placement(tuple(range(share * size, (share + 1) * size)), mesh, axes)


def placements_of(config: PlanConfig) -> tuple[Placement, ...]:
    """One mesh per stage, in pipeline order."""
    size, shares = math.prod(config.mesh), config.stage_order or range(config.pp)
    if config.strides:
        return tuple(Placement(tuple(each.ravel().tolist()), config.mesh, config.axes) for each in ranks_of(config))
    return tuple(Placement(tuple(range(s * size, (s + 1) * size)), config.mesh, config.axes) for s in shares)
