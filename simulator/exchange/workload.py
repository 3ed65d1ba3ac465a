"""Workload: a training step as one GPU sees it: spans of compute, the gradients that they need and that they give.

Times are a roofline over the training graph's ops: FLOPs at a share of the device's peak, or bytes at a share of its
memory's bandwidth, and a floor per kernel. Convolutions of 3 x 3 with stride 1 run by Winograd's F(2 x 2, 3 x 3), which
multiplies 2.25 times less (Lavin and Gray 2016, arXiv:1509.09308).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strategy.base.errors import InputError
from strategy.base.units import to_ns
from strategy.graph.graph import Graph, Op, Phase
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import Convolution, counts_flop
from strategy.hardware.devices import DeviceSheet
from strategy.models.base import Model
from strategy.passes.training import Training, training_graph
from strategy.passes.updates import Optimizer

_PEAK_SHARE = {32: 0.7, 16: 0.4}
"""Of the dense peak in products and convolutions, by width; NVIDIA's P100 and V100 in TensorFlow's benchmarks."""
_MEMORY_SHARE = 0.9
_KERNEL_S = 2e-6
_WINOGRAD = 2.25


@dataclass(frozen=True, slots=True)
class ComputeSpan:
    """Compute that waits for the step before to have exchanged `needs`, and ends with the gradients that it `gives`."""

    time_ns: int
    needs: tuple[int, ...] = ()
    gives: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """A step's spans in order; `nbytes` of every gradient, numbered as the forward pass needs their parameters."""

    name: str
    spans: tuple[ComputeSpan, ...]
    nbytes: tuple[int, ...]

    def __post_init__(self) -> None:
        given = sorted(gradient for span in self.spans for gradient in span.gives)
        needed = {gradient for span in self.spans for gradient in span.needs}
        if given != list(range(len(self.nbytes))) or needed != set(given):
            expected = f"all of {len(self.nbytes)}"
            raise InputError(
                "gradients are not each given once and needed", where=self.name, got=given, expected=expected
            )

    @property
    def compute_ns(self) -> int:
        """A step alone."""
        return sum(span.time_ns for span in self.spans)


def workload(
    name: str,
    model: Model,
    batch: int,
    device: DeviceSheet,
    *,
    width: int = 32,
    optimizer: Optimizer = Optimizer.SGD,
) -> Workload:
    """A model's step with a batch per GPU; gradients are of single precision.

    Args:
        name: of the workload.
        model: the model.
        batch: samples per GPU.
        device: of every rank.
        width: bits of the operands of products and of what moves between kernels, 32 or 16.
        optimizer: how parameters are updated.
    """
    training = Training(global_batch=batch, optimizer=optimizer, max_norm=math.inf)
    graph = training_graph(model, training)
    updates = {op.updates[0]: op for op in graph.ops if op_definition(op.kind).trains}
    return step_workload(name, graph, updates, lambda op: _time_ns(graph, op, device, width))


def step_workload(
    name: str,
    graph: Graph,
    updates: Mapping[str, Op],
    time_ns: Callable[[Op], int],
    *,
    before_ns: int = 0,
    together: bool = False,
) -> Workload:
    """A step of a training graph.

    Args:
        name: of the workload.
        graph: the graph.
        updates: by parameter, the op that updates it.
        time_ns: of every op.
        before_ns: what the step computes before these ops: earlier micro-batches.
        together: whether no parameter is updated before all gradients are there, as where they are clipped by a norm.
    """
    place = {op.name: number for number, op in enumerate(graph.ops)}
    first = [(place[graph.consumers[variable][0].name], variable) for variable in updates]
    first.sort(key=lambda need: (need[0], -graph.ops[need[0]].inputs.index(need[1])))
    number = {variable: gradient for gradient, (_, variable) in enumerate(first)}
    needs: dict[int, list[int]] = {}
    gives: dict[int, list[int]] = {}
    nbytes = []
    for at, variable in first:
        needs.setdefault(at, []).append(number[variable])
        gradient = _exchanged(graph, place, updates[variable].inputs[0])
        gives.setdefault(place[graph.producer[gradient].name], []).append(number[variable])
        nbytes.append(graph.values[gradient].spec.nbytes)
    update_ns = {number[variable]: time_ns(op) for variable, op in updates.items()}
    spans = (
        [ComputeSpan(before_ns, tuple(range(len(first))))]
        if together
        else [ComputeSpan(before_ns)]
        if before_ns
        else []
    )
    for at, op in enumerate(graph.ops):
        if op.phase is not Phase.UPDATE:
            need, give = tuple(needs.get(at, ())), tuple(gives.get(at, ()))
            spans.append(ComputeSpan(time_ns(op) + sum(update_ns[gradient] for gradient in need), need, give))
    return Workload(name, _merged(spans), tuple(nbytes))


def _exchanged(graph: Graph, place: Mapping[str, int], gradient: str) -> str:
    """What the backward pass makes of a gradient: terms of one may be added, scaled and clipped after it."""
    producer = graph.producer[gradient]
    if producer.phase is not Phase.UPDATE:
        return gradient
    shape = graph.values[gradient].spec.shape
    alike = (name for name in producer.inputs if name in graph.producer and graph.values[name].spec.shape == shape)
    terms = (_exchanged(graph, place, name) for name in alike)
    return max(terms, key=lambda name: place[graph.producer[name].name])


def _merged(spans: Sequence[ComputeSpan]) -> tuple[ComputeSpan, ...]:
    """Fewer spans that need and give the same at the same times."""
    found: list[ComputeSpan] = []
    for span in spans:
        if found and not found[-1].gives and not span.needs:
            found[-1] = ComputeSpan(found[-1].time_ns + span.time_ns, found[-1].needs, span.gives)
        else:
            found.append(span)
    return tuple(found)


def _time_ns(graph: Graph, op: Op, device: DeviceSheet, width: int) -> int:
    definition = op_definition(op.kind)
    read, written = graph.specs(op.inputs), graph.specs(op.outputs)
    specs = (*read, *written, *graph.specs(op.updates))
    nbytes = definition.nbytes(read, written, op.attrs) if definition.nbytes else sum(spec.nbytes for spec in specs)
    moved_s = nbytes * (1.0 if op.updates else width / 32) / (device.memory_bytes_per_s * _MEMORY_SHARE)
    if not counts_flop(definition.cost):
        return to_ns(moved_s + _KERNEL_S)
    flop = definition.flop(read, written, op.attrs)
    if width == 32 and isinstance(definition.cost, Convolution):
        filters = (*read, *written)[definition.cost.filters]
        if filters.shape[2:] == (3, 3) and op.attrs["stride"] == (1, 1):
            flop = round(flop / _WINOGRAD)
    return to_ns(max(flop / (device.peak(width) * _PEAK_SHARE[width]), moved_s) + _KERNEL_S)
