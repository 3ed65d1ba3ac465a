"""Module recording: a module that says what it reads, as a recorded model.

The loss. A module whose `forward` gives (loss, count) says itself what is minimised. One that gives logits, as an
exported program does, is trained by cross-entropy over their last dim:

    logits [b, classes]          labels [b], a class per sample
    logits [b, s, vocabulary]    labels [b, s]: where ids [b, s] are read, the token after each, else a class each
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strategy.base.errors import GraphError, InputError
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Role
from strategy.models.base import Integers, RandomFeatures, Source, Tokens
from strategy.models.per_sample import SAMPLES
from strategy.models.recorded import Feed, RecordedModel
from strategy.models.recorded_layers import RecordedLayers
from strategy.models.recording import TracedLoss, record
from strategy.nn.layers import set_training
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor, Tracer
from strategy.sbp.placement import Space
from strategy.sbp.tensor import DType, TensorSpec

LABELS = "labels"


@dataclass(frozen=True, slots=True)
class TracedModule:
    """A module traced for one micro-batch.

    Attributes:
        loss: its graph, with a loss if it had none.
        inputs: those of `forward`, and the labels of a loss that was added.
        classes: that the added labels are of; 0 where none were added.
    """

    loss: TracedLoss
    inputs: Mapping[str, TensorSpec]
    classes: int


def record_module(
    module: Module,
    *,
    where: str,
    labels: Mapping[str, str] | None = None,
    batch: Mapping[str, Source] | None = None,
) -> RecordedModel | RecordedLayers:
    """The model that a module is, with a loss if it has none.

    Args:
        module: with a method `inputs(micro_batch)` that gives {name: TensorSpec}, samples first, in `forward`'s order.
        where: what it is, for messages.
        labels: parameter -> what its authors' file calls it.
        batch: input -> what fills it, for those that the graph does not say it of.

    Raises:
        InputError: the module does not say what it reads, or gives neither a loss nor logits.
        GraphError: it does not compose, or does not follow from the number of samples.
    """
    several = {samples: _traced(module, samples, where) for samples in SAMPLES}
    first = several[SAMPLES[0]]
    feeds = {name: Feed(_source_of(name, first, batch or {}), spec.shape[1:]) for name, spec in first.inputs.items()}
    for samples, one in several.items():
        expected = {name: feed.spec(samples) for name, feed in feeds.items()}
        if one.inputs != expected:
            got = {name: str(spec) for name, spec in one.inputs.items()}
            hint = "samples are alike, of 32-bit floats or integers"
            raise InputError(f"other inputs for {samples} samples", where=where, got=got, hint=hint)
    try:
        return record(lambda samples: several[samples].loss, feeds, labels)
    except GraphError as error:
        raise GraphError(error.problems, where=where) from error
    except InputError as error:
        raise InputError(str(error), where=where) from error


def _traced(module: Module, samples: int, where: str) -> TracedModule:
    inputs = _inputs(module, samples, where)
    tracer = Tracer()
    set_training(module, True)
    tracer.adopt(module, DType.FLOAT32)
    outputs = module(*(tracer.input(name, spec) for name, spec in inputs.items()))
    classes = 0
    if isinstance(outputs, tuple) and len(outputs) == 2 and all(isinstance(one, Tensor) for one in outputs):
        loss, count = outputs
        if loss.shape or count.shape:
            got, expected = (loss.shape, count.shape), "two scalars: the summed loss and its count"
            raise InputError("not a loss and a count", where=where, got=got, expected=expected)
    else:
        logits = _logits(outputs, inputs, where)
        inputs[LABELS], classes = TensorSpec(logits.shape[:-1], DType.INT32), logits.shape[-1]
        loss, count = cross_entropy(logits, tracer.input(LABELS, inputs[LABELS]))
    tracer.check()
    if any(value.space is Space.HOST for value in tracer.graph.values.values()):
        raise InputError("a module that computes on hosts", where=where, hint="offloading is the plan's to choose")
    _leave_out_unread(tracer.graph)
    return TracedModule(TracedLoss(tracer.graph, loss.name, count.name), inputs, classes)


def _inputs(module: Module, samples: int, where: str) -> dict[str, TensorSpec]:
    """What the module says that it reads."""
    declared = getattr(module, "inputs", None)
    if not callable(declared):
        hint = "give it a method inputs(micro_batch) that returns {name: TensorSpec}, samples first"
        raise InputError("the module does not say what it reads", where=where, got=type(module).__name__, hint=hint)
    given = declared(samples)
    specs = isinstance(given, dict) and all(isinstance(one, TensorSpec) for one in given.values())
    if not specs or not given or any(one.shape[:1] != (samples,) for one in given.values()):
        expected = "{name: TensorSpec}, the first dim of each the micro-batch"
        raise InputError("inputs that are none", where=where, got=given, expected=expected)
    return dict(given)


def _logits(outputs: Any, inputs: Mapping[str, TensorSpec], where: str) -> Tensor:
    """What a module gives that gives no loss."""
    expected = "logits [b, classes] or [b, s, vocabulary], or a summed loss and its count"
    if not isinstance(outputs, Tensor):
        got = type(outputs).__name__
        raise InputError("not an output that can be trained", where=where, got=got, expected=expected)
    if len(outputs.shape) not in (2, 3) or not outputs.spec.dtype.is_float or LABELS in inputs:
        got_all, hint = (outputs.shape, *inputs), "return the logits first, and leave labels and loss to the plan"
        raise InputError("not an output that can be trained", where=where, got=got_all, expected=expected, hint=hint)
    if outputs.shape[0] != next(iter(inputs.values())).shape[0]:
        hint = "the first dim of the output is that of the samples"
        raise InputError("an output without samples", where=where, got=outputs.shape, hint=hint)
    return outputs


def _leave_out_unread(graph: GraphBuilder) -> None:
    """Files hold parameters that what is computed does not depend on."""
    read = {name for op in graph.ops for name in (*op.inputs, *op.updates)}
    for name in [one.name for one in graph.values.values() if one.role is Role.VARIABLE and one.name not in read]:
        del graph.values[name]


def _source_of(name: str, traced: TracedModule, batch: Mapping[str, Source]) -> Source:
    """What fills an input: what is declared, or what follows from how it is read.

    Raises:
        InputError: integers that neither choose rows of a table nor are labels.
    """
    if name in batch:
        return batch[name]
    spec, added = traced.inputs[name], traced.classes > 0
    if name == LABELS and added:
        of_tokens = len(spec.shape) == 2 and any(_is_ids(one) for key, one in traced.inputs.items() if key != LABELS)
        return Tokens(traced.classes, 1) if of_tokens else Integers(traced.classes)
    if spec.dtype.is_float:
        return RandomFeatures(LABELS if LABELS in traced.inputs and len(traced.inputs[LABELS].shape) == 1 else "")
    rows = min(_below(traced.loss.graph, name), default=0)
    if rows < 1:
        hint = "say what fills it: batch = {name: Integers(below)}"
        raise InputError("an input of integers that choose nothing", where=f"input {name}", hint=hint)
    return Tokens(rows) if _is_ids(spec) else Integers(rows)


def _is_ids(spec: TensorSpec) -> bool:
    """Whether it is [b, s] of integers."""
    return len(spec.shape) == 2 and not spec.dtype.is_float and spec.shape[1] > 1


def _below(graph: GraphBuilder, name: str) -> Iterator[int]:
    """How many rows each table has that an input chooses from, or classes that it is a label of."""
    for op in graph.ops:
        if op.kind == "gather" and op.inputs[1] == name:
            yield graph.spec(op.inputs[0]).shape[int(op.attrs["axis"])]  # type: ignore[arg-type]
        elif op.kind == "cross_entropy" and op.inputs[1] == name:
            yield graph.spec(op.inputs[0]).shape[-1]


__all__ = ["LABELS", "record_module"]
