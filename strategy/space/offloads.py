"""Offloads: whether what waits on a host may save memory, and whether it may save time."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from strategy.base.errors import InputError
from strategy.cost.cost import CostModel, op_features
from strategy.cost.measurement import Features
from strategy.graph.graph import Phase, Role, deciding_op
from strategy.graph.signature import op_signatures
from strategy.hardware.cluster import Cluster
from strategy.layout.config import Offload, Recompute
from strategy.models import Model
from strategy.passes.offload import has_trips
from strategy.passes.recompute import recompute as recomputed
from strategy.passes.training import Training, training_graph
from strategy.sbp.placement import Space
from strategy.sbp.tensor import Rate
from strategy.space.short_model import multiplicities, shortened


def check_host(cluster: Cluster, offload: Offload) -> None:
    """Refuse to let something wait on a host where there is none.

    Raises:
        InputError: with what is missing.
    """
    if offload is not Offload.NONE and cluster.host is None:
        hint = "write a [host] section into its file: memory, memory_bandwidth, compute, bandwidth, latency"
        where = f"cluster {cluster.name}"
        raise InputError("there is no host to offload to", where=where, got=str(offload), hint=hint)


@lru_cache(maxsize=32)
def may_travel(model: Model, training: Training, recompute: Recompute) -> bool:
    """Whether there are activations that wait for the backward pass in a layer, of those that are kept."""
    return has_trips(recomputed(training_graph(shortened(model) or model, training), recompute))


def updates_no_faster(model: Model, training: Training, cost: CostModel) -> bool:
    """Whether no update runs faster on the host than on its device, so that there is nothing to gain but memory."""
    for here in _updates(model, replace(training, num_micro_batches=1)):
        sheets = [cost.least_of(replace(here, space=space)) for space in (Space.DEVICE, Space.HOST)]
        device, host = ((one.fixed_s, one.s_per_flop, one.s_per_byte) for one in sheets)
        if any(there < near for near, there in zip(device, host, strict=True)):
            return False
    return True


@lru_cache(maxsize=32)
def _updates(model: Model, training: Training) -> tuple[Features, ...]:
    """The updates of a step on one device, each once of those that are alike."""
    graph = training_graph(shortened(model) or model, training)
    ops = [op for op in graph.ops if op.updates and op.phase is Phase.UPDATE]
    return tuple(dict.fromkeys(op_features(graph, op, op_signatures(graph, op, (1,))[0], (1,)) for op in ops))


@lru_cache(maxsize=8)
def least_held_nbytes(model: Model, training: Training) -> int:
    """Bytes that a training holds at least, all devices together, of a model of layers that are alike.

    That is what lives between steps, gradients, and what a sample leaves for the backward pass of layers of which all
    is computed again.
    """
    short = shortened(model) or model
    graph = recomputed(training_graph(short, training), Recompute.FULL)
    counts = multiplicities(graph, model.layers) if short is not model else {}
    total = 0
    for name, value in graph.values.items():
        op = deciding_op(graph, name)
        if op is None:
            continue
        if value.rate is Rate.MICRO_BATCH:
            waits = any(reader.phase is not Phase.FORWARD for reader in graph.consumers[name])
            is_held = op.phase is Phase.FORWARD and op.layer is not None and waits
        else:
            is_held = value.role is Role.VARIABLE or op.phase not in (Phase.FORWARD, Phase.UPDATE)
        total += is_held * value.spec.expected.nbytes * counts.get(op.name, 1)
    return total
