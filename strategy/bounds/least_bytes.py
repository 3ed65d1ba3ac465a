"""Least bytes: what a layer leaves on its fullest rank at least, on the device and on its host, in whatever layout."""

from __future__ import annotations

from dataclasses import dataclass

from strategy.graph.graph import Graph, Op, Phase, Role, deciding_op
from strategy.layout.config import PlanConfig
from strategy.sbp.placement import Space
from strategy.sbp.tensor import Rate
from strategy.space.rules import beside_experts
from strategy.space.short_model import MIDDLE


@dataclass(frozen=True, slots=True)
class LeastBytes:
    """Of one layer on its fullest rank.

    Attributes:
        held: for the whole step.
        used: of that, what samples are multiplied with.
        sums: of gradients, from the first backward pass on.
        saved: by a micro-batch, from its forward pass to its backward pass.
        on_host: for the whole step, in the memory of the host.
        waiting: there, of a micro-batch from its forward pass to its backward pass.
    """

    held: float
    used: float
    sums: float
    saved: float
    on_host: float
    waiting: float


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Bytes of one layer, unsplit: held, those of it that samples are multiplied with, sums; saved per sample.

    Those beside `experts` are not `used`. What is `on_host` and `waiting` there, of a sample, is not among them.
    """

    held: int = 0
    used: int = 0
    experts: int = 0
    sums: int = 0
    saved: int = 0
    on_host: int = 0
    waiting: int = 0

    def on(self, config: PlanConfig, *, unusual: bool) -> LeastBytes:
        """On the fullest rank of a configuration; `unusual`: data may lie as it never does without pins."""
        parts = config.tp * config.cp
        used, experts = (0, 0) if config.zero_stage == 3 or unusual else (self.used, self.experts)
        # along a context axis beside a data axis parameters are as along that
        whole = (used + experts / config.ep) / (config.tp if config.mesh[config.data_axis] > 1 else parts)
        with_samples = config.micro_batch / (parts * (config.dp if unusual else 1))
        return LeastBytes(
            whole + (self.held - used - experts) / (parts * config.shards),
            whole,
            self.sums / (parts * config.shards),
            self.saved * with_samples,
            self.on_host / (parts * config.shards),
            self.waiting * with_samples,
        )


def sizes_of_layer(graph: Graph) -> LayerSizes:
    """Of the middle layer of a short model."""
    beside = beside_experts(graph)
    held = used = experts = sums = saved = on_host = waiting = 0
    for name, value in graph.values.items():
        op = deciding_op(graph, name)
        if op is None or op.layer != MIDDLE:
            continue
        nbytes, readers = value.spec.expected.nbytes, graph.consumers[name]
        is_for_ever = value.role is Role.VARIABLE
        if value.space is not Space.DEVICE:
            on_host += nbytes * is_for_ever
            waiting += nbytes * (value.rate is Rate.MICRO_BATCH)
        elif value.rate is Rate.STEP and not is_for_ever and op.phase is not Phase.FORWARD:
            sums += nbytes * (op.phase is not Phase.UPDATE)
        elif is_for_ever or value.rate is Rate.STEP:
            later = [one for one in readers if one.phase is not Phase.FORWARD]
            if not is_for_ever and not later:
                continue  # gone once the last forward pass is over
            held += nbytes
            with_samples = [one.name in beside for one in later if _is_with_samples(graph, one)]
            used += nbytes * (False in with_samples)
            experts += nbytes * (with_samples != [] and False not in with_samples)
        elif op.phase is Phase.FORWARD and any(one.phase is not Phase.FORWARD for one in readers):
            saved += nbytes
    return LayerSizes(held, used, experts, sums, saved, on_host, waiting)


def _is_with_samples(graph: Graph, op: Op) -> bool:
    """Whether an op of a layer reads samples, so that along the data axis all else is whole that it reads."""
    return op.layer is not None and any(graph.values[name].rate is Rate.MICRO_BATCH for name in op.inputs)
