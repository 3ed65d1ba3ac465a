"""Recording: from code to a recorded model, by tracing it with a few numbers of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from strategy.base.errors import GraphError, InputError
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Op, Role, lineage_of
from strategy.models.per_sample import SAMPLES, fitted
from strategy.models.recorded import Feed, RecordedModel, RecordedOp, RecordedParameter, Recording
from strategy.models.recorded_layers import RecordedLayers, has_alike_layers


@dataclass(frozen=True, slots=True)
class TracedLoss:
    """The forward pass of a micro-batch, and the names of its summed loss and count."""

    graph: GraphBuilder
    loss: str
    count: str


def record(
    traced: Callable[[int], TracedLoss], feeds: Mapping[str, Feed], labels: Mapping[str, str] | None = None
) -> RecordedModel | RecordedLayers:
    """The model that a computation is.

    Args:
        traced: the computation, for so many samples.
        feeds: its inputs in their order.
        labels: parameter -> what its authors' file calls it, where it was read from one.

    Raises:
        GraphError: it does other ops for other numbers of samples, or with other figures than so much per sample: all
            of that at once.
        InputError: there are no inputs.
    """
    if not feeds:
        raise InputError("a graph without inputs", expected="what fills each: {name: Feed(source, shape)}")
    several = [traced(samples) for samples in SAMPLES]
    graphs = [one.graph for one in several]
    lists = [[(op.name, op.kind, op.inputs, op.updates) for op in graph.ops] for graph in graphs]
    if any(ops != lists[0] for ops in lists):
        told = next((one for one in zip(*lists, strict=False) if len(set(one)) > 1), ("", "", ""))
        names = ", ".join(str(one[0]) for one in told if one)
        raise GraphError([f"the code does other ops for {SAMPLES} samples ({names}); write it for any number of them"])
    problems: list[str] = []
    ops = tuple(_recorded(list(same), problems) for same in zip(*(graph.ops for graph in graphs), strict=True))
    if problems:
        raise GraphError(problems)
    variables = [value for value in graphs[0].values.values() if value.role is Role.VARIABLE]
    called = labels or {}
    parameters = tuple(
        RecordedParameter(value.path, value.spec.shape, value.init, called.get(value.name, "")) for value in variables
    )
    recording = Recording(dict(feeds), parameters, ops, several[0].loss, several[0].count, _heads(graphs[0]))
    text = recording.text()
    return RecordedLayers(recording.num_layers, text) if has_alike_layers(recording) else RecordedModel(text)


def _recorded(same: list[Op], problems: list[str]) -> RecordedOp:
    op, attrs = same[0], {}
    for key in op.attrs:
        try:
            attrs[key] = fitted([one.attrs[key] for one in same])
        except InputError as error:
            problems.append(f"op {op.name}: {key}: {error}")
    return RecordedOp(lineage_of(op), op.kind, op.inputs, op.labels, attrs, op.layer, op.phase, op.updates)


def _heads(graph: GraphBuilder) -> int:
    """Of attention: what all of its heads of queries have in common."""
    return math.gcd(*(graph.spec(op.outputs[0]).shape[2] for op in graph.ops if op.kind == "attention"))
