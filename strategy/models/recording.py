"""Recording: a module is traced for three micro-batches, and what differs between them must follow from their size.

The loss. A module whose `forward` gives (loss, count) says itself what is minimised. One that gives logits, as an
exported program does, is trained by cross-entropy over their last dim:

    logits [b, classes]          labels [b], a class per sample
    logits [b, s, vocabulary]    labels [b, s]: where ids [b, s] are read, the token after each, else a class each
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from strategy.base.errors import GraphError, InputError
from strategy.graph.graph import Attr, Graph, Op, Role, Value
from strategy.models.base import Integers, RandomFeatures, Source, Tokens
from strategy.models.recorded import RecordedModel, as_text
from strategy.nn.layers import set_training
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor, Tracer
from strategy.sbp.placement import Space
from strategy.sbp.tensor import DType, Rate, TensorSpec

_MICRO_BATCHES = (2, 3, 4)
LABELS = "labels"


class Recordable(Protocol):
    """What is recorded: a module that says what it reads, of which the first dim is that of the samples."""

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        """Inputs of `forward` in its order."""


def record(
    module: Module,
    *,
    where: str,
    origins: Mapping[str, str] | None = None,
    batch: Mapping[str, Source] | None = None,
) -> RecordedModel:
    """The model that a module is, with a loss if it has none.

    Args:
        module: with a method `inputs`, see `Recordable`.
        where: what it is, for messages.
        origins: variable -> what its authors call it.
        batch: input -> what fills it, for those that the graph does not say it of.

    Raises:
        InputError: the module does not say what it reads, gives neither a loss nor logits, or its graph does not follow
            from the size of the micro-batch.
        GraphError: it does not compose.
    """
    traced = [_Traced(module, micro_batch, where) for micro_batch in _MICRO_BATCHES]
    first = traced[0].graph
    _check_alike(traced, where)
    specs = [one.inputs for one in traced]
    inputs = [
        [
            name,
            [
                _size([one[name].shape[dim] for one in specs], f"{where}: input {name}")
                for dim in range(len(spec.shape))
            ],
            str(spec.dtype),
            _source_of(name, traced[0], batch or {}),
        ]
        for name, spec in specs[0].items()
    ]
    known = origins or {}
    read = {name for op in first.ops for name in (*op.inputs, *op.updates)}
    variables = [
        [list(value.path), list(value.spec.shape), value.init, known.get(value.name, "")]
        for value in first.with_role(Role.VARIABLE)
        if value.name in read
    ]
    ops = [_op_record([one.graph.ops[place] for one in traced], where) for place in range(len(first.ops))]
    content = {
        **{"inputs": inputs, "variables": variables, "ops": _layers_numbered(ops)},
        **{"loss": traced[0].loss, "count": traced[0].count},
        **{"tokens": traced[0].tokens, "heads": _heads(first)},
    }
    try:
        return RecordedModel(as_text(content))
    except InputError as error:
        raise InputError(str(error), where=where) from error


class _Traced:
    """A module traced for one micro-batch; its loss, and the inputs with the labels."""

    def __init__(self, module: Module, micro_batch: int, where: str) -> None:
        declared = getattr(module, "inputs", None)
        if not callable(declared):
            hint = "give it a method inputs(micro_batch) that returns {name: TensorSpec}, samples first"
            raise InputError("the module does not say what it reads", where=where, got=type(module).__name__, hint=hint)
        given = declared(micro_batch)
        specs = isinstance(given, dict) and all(isinstance(one, TensorSpec) for one in given.values())
        if not specs or not given or any(one.shape[:1] != (micro_batch,) for one in given.values()):
            expected = "{name: TensorSpec}, the first dim of each the micro-batch"
            raise InputError("inputs that are none", where=where, got=given, expected=expected)
        tracer = Tracer()
        set_training(module, True)
        tracer.adopt(module, DType.FLOAT32)
        self.inputs: dict[str, TensorSpec] = dict(given)
        outputs = module(*[_declared(tracer, name, spec) for name, spec in given.items()])
        self.tokens = next(
            (one.shape[1] for one in given.values() if len(one.shape) == 2 and not one.dtype.is_float), 1
        )
        self.logits: Tensor | None = None
        if isinstance(outputs, tuple) and len(outputs) == 2 and all(isinstance(one, Tensor) for one in outputs):
            loss, count = outputs
            if loss.shape or count.shape:
                got, expected = (loss.shape, count.shape), "two scalars: the summed loss and its count"
                raise InputError("not a loss and a count", where=where, got=got, expected=expected)
        else:
            loss, count = self._with_loss(tracer, outputs, where)
        self.loss, self.count = loss.name, count.name
        self.graph = tracer.graph.build(loss=loss.name)

    def _with_loss(self, tracer: Tracer, logits: Any, where: str) -> tuple[Tensor, Tensor]:
        expected = "logits [b, classes] or [b, s, vocabulary], or a summed loss and its count"
        if not isinstance(logits, Tensor):
            raise InputError(
                "not an output that can be trained", where=where, got=type(logits).__name__, expected=expected
            )
        if len(logits.shape) not in (2, 3) or not logits.spec.dtype.is_float or LABELS in self.inputs:
            got = (logits.shape, *self.inputs)
            hint = "return the logits first, and leave labels and loss to the plan"
            raise InputError("not an output that can be trained", where=where, got=got, expected=expected, hint=hint)
        micro_batch = next(iter(self.inputs.values())).shape[0]
        if logits.shape[0] != micro_batch:
            hint = "the first dim of the output is that of the samples"
            raise InputError("an output without samples", where=where, got=logits.shape, hint=hint)
        self.logits = logits
        self.inputs[LABELS] = TensorSpec(logits.shape[:-1], DType.INT32)
        return cross_entropy(logits, _declared(tracer, LABELS, self.inputs[LABELS]))


def _declared(tracer: Tracer, name: str, spec: TensorSpec) -> Tensor:
    return Tensor(tracer, tracer.graph.declare(Value(name, spec, Rate.MICRO_BATCH, Role.INPUT)))


def _check_alike(traced: Sequence[_Traced], where: str) -> None:
    """Raise InputError unless all graphs are alike but for sizes."""
    shapes = [[(op.name, op.kind, op.inputs, op.updates, op.outputs) for op in one.graph.ops] for one in traced]
    if any(one != shapes[0] for one in shapes) or any(list(one.inputs) != list(traced[0].inputs) for one in traced):
        hint = "does its code branch on the number of samples?"
        raise InputError("another graph for another micro-batch", where=where, got=_MICRO_BATCHES, hint=hint)
    if any(value.space is Space.HOST for value in traced[0].graph.values.values()):
        raise InputError("a module that computes on hosts", where=where, hint="offloading is the plan's to choose")


def _size(found: Sequence[int], where: str) -> int | list[int]:
    """What is the same for every micro-batch, or [a, c] for a + c b."""
    if len(set(found)) == 1:
        return found[0]
    step = found[1] - found[0]
    fixed = found[0] - step * _MICRO_BATCHES[0]
    if any(size != fixed + step * b for size, b in zip(found, _MICRO_BATCHES, strict=True)):
        raise InputError("a size that does not grow with the micro-batch", where=where, got=tuple(found))
    return [fixed, step]


def _op_record(alike: Sequence[Op], where: str) -> list[Any]:
    first, at = alike[0], f"{where}: op {alike[0].name}"
    attrs = {key: _attr([op.attrs[key] for op in alike], f"{at}: {key}") for key in first.attrs}
    lists = [list(first.inputs), list(first.updates), list(first.labels)]
    return [first.name, first.template, first.origin, first.kind, *lists, attrs, str(first.phase), first.layer]


def _attr(found: Sequence[Attr], where: str) -> Any:
    first = found[0]
    if all(one == first for one in found):
        return list(first) if isinstance(first, tuple) else first
    if all(isinstance(one, int) for one in found):
        return {"size": _size([int(one) for one in found], where)}  # type: ignore[arg-type]
    if all(isinstance(one, tuple) and len(one) == len(first) for one in found):  # type: ignore[arg-type]
        return [_size(sizes, where) for sizes in zip(*found, strict=True)]
    if all(isinstance(one, float) and one for one in found):
        if all(float(one).is_integer() for one in found):  # type: ignore[arg-type]
            return {"figure": _size([int(one) for one in found], where)}  # type: ignore[arg-type]
        per_sample = round(1.0 / (float(first) * _MICRO_BATCHES[0]))  # type: ignore[arg-type]
        if per_sample and all(one == 1.0 / (per_sample * b) for one, b in zip(found, _MICRO_BATCHES, strict=True)):
            return {"per_sample": per_sample}
    raise InputError("an attribute that does not follow from the micro-batch", where=where, got=tuple(found))


def _layers_numbered(ops: list[list[Any]]) -> list[list[Any]]:
    """Layers without ops are left out of their numbers, where a module skips some."""
    used = sorted({op[-1] for op in ops if op[-1] is not None})
    if used == list(range(len(used))):
        return ops
    raise InputError("layers without ops", got=used, expected="0, 1, 2 and so on")


def _heads(graph: Graph) -> int:
    """Of attention: what all of its heads of queries have in common."""
    from math import gcd

    found = 0
    for op in graph.ops:
        if op.kind == "attention":
            found = gcd(found, graph.values[op.outputs[0]].spec.shape[2])
    return found


def _source_of(name: str, traced: _Traced, batch: Mapping[str, Source]) -> list[Any]:
    """What fills an input: what is declared, or what follows from how it is read.

    Raises:
        InputError: integers that neither choose rows of a table nor are labels.
    """
    if name in batch:
        return _source_record(batch[name])
    graph, spec = traced.graph, traced.inputs[name]
    if name == LABELS and traced.logits is not None:
        tokens, classes = traced.tokens > 1 and len(spec.shape) == 2, traced.logits.shape[-1]
        return _source_record(Tokens(classes, 1) if tokens else Integers(classes))
    if spec.dtype.is_float:
        labels = LABELS if LABELS in traced.inputs and len(traced.inputs[LABELS].shape) == 1 else ""
        return _source_record(RandomFeatures(labels))
    rows = min(_below(graph, name), default=0)
    if rows < 1:
        hint = "say what fills it: batch = {name: Integers(below)}"
        raise InputError("an input of integers that choose nothing", where=f"input {name}", hint=hint)
    return _source_record(Tokens(rows) if len(spec.shape) == 2 else Integers(rows))


def _below(graph: Graph, name: str) -> Iterator[int]:
    """How many rows each table has that an input chooses from, or classes that it is a label of."""
    for op in graph.consumers[name]:
        if op.kind == "gather" and op.inputs[1] == name:
            yield graph.values[op.inputs[0]].spec.shape[int(op.attrs["axis"])]  # type: ignore[arg-type]
        elif op.kind == "cross_entropy" and op.inputs[1] == name:
            yield graph.values[op.inputs[0]].spec.shape[-1]


def _source_record(source: Source) -> list[Any]:
    if isinstance(source, Tokens):
        return ["tokens", source.below, source.shift]
    if isinstance(source, Integers):
        return ["integers", source.below]
    return ["features", source.label]


__all__ = ["LABELS", "GraphError", "Recordable", "record"]
