"""A plan's step as the exchange models see it: the compute of one GPU, span by span, at the plan's own prices."""

from __future__ import annotations

import math

from simulator.exchange.workload import Workload, step_workload
from strategy.base.errors import InputError
from strategy.base.units import to_ns
from strategy.cost.cost import by_groups, op_features
from strategy.cost.measurement import Features
from strategy.graph.graph import Op, Phase
from strategy.graph.ops import op_definition
from strategy.graph.signature import op_signatures
from strategy.layout.objective import Priced
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.program.program import ActKind
from strategy.sbp.tensor import Rate


def planned_workload(name: str, priced: Priced, training: Training) -> Workload:
    """The workload of a data-parallel plan, every rank of which updates all parameters.

    Raises:
        InputError: its optimiser takes the gradients of several layers as one.
    """
    graph = priced.graph
    if training.optimizer is Optimizer.MUON:
        raise InputError("gradients of several layers are updated as one", where=name, got=training.optimizer)
    updates = {op.updates[0]: op for op in graph.ops if op_definition(op.kind).trains}
    time_of: dict[str, int] = {}
    once_ns = micro_ns = 0
    for action, features in zip(priced.arrangement.actions, priced.features, strict=True):
        if action.kind is not ActKind.COMPUTE:
            continue
        op = graph.by_name[action.op]
        if op.phase is Phase.UPDATE:
            time_of[op.name] = to_ns(priced.cost.seconds(_replicated(priced, op)))
            once_ns += 0 if op_definition(op.kind).trains else time_of[op.name]
            continue
        time_of[op.name] = to_ns(priced.cost.seconds(features))
        micro_ns += time_of[op.name] if action.rate is Rate.MICRO_BATCH else 0
    return step_workload(
        name,
        graph,
        updates,
        lambda op: time_of.get(op.name, 0),
        before_ns=once_ns + (priced.pipeline.num_micro_batches - 1) * micro_ns,
        together=math.isfinite(training.max_norm),
    )


def _replicated(priced: Priced, op: Op) -> Features:
    """What an update is to the cost model on a rank that shares it out with nobody."""
    placement = priced.layout.stages.placement(op.name)
    broadcast, *_ = op_signatures(priced.graph, op, placement.mesh)
    found = op_features(priced.graph, op, broadcast, placement.mesh)
    return by_groups(found, priced.cost.cluster.groups_of(placement.devices))
