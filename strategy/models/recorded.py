"""Recorded models: what somebody's own code computes, as the ops that it traces into.

A plan file holds one whole, so that it can be simulated, verified and trained where that code is not. Sizes are kept as
functions of the samples of a micro-batch (`per_sample`). `recording` makes them.

    {"inputs": {"x": [[{"per_sample": 1, "plus": 0}, 4], "features", "labels"], ...},
     "parameters": [[["model", "fc", "weight"], [4, 6], "normal(0.5)", ""], ...],
     "ops": [{"name": "model.fc.matmul", "kind": "matmul", "inputs": ["x", "model.fc.weight"]}, ...],
     "loss": "loss", "count": "loss.count", "heads": 0}

The fourth of a parameter is what a file calls it that the model was read from.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from strategy.base.errors import GraphError, InputError
from strategy.base.files import parse_json
from strategy.base.limits import LARGEST
from strategy.graph.graph import Attrs, Lineage, Path, Phase, layer_of
from strategy.models.base import Family, Integers, RandomFeatures, Source, Tokens
from strategy.models.per_sample import figure
from strategy.nn.module import Module, Parameter
from strategy.nn.tracer import Tensor
from strategy.sbp.tensor import DType, Shape, TensorSpec

PER_SAMPLE = {"per_sample": 1, "plus": 0}
"""The first dim of every input."""
MOST_TEXT = 64 * 2**20
"""Characters of a document."""
MOST_LAYERS = 2**31 - 1
MOST_SIZE = 2**40 - 1
"""Of one dim."""
_SOURCES: Mapping[str, type[Source]] = {"tokens": Tokens, "integers": Integers, "features": RandomFeatures}
_WHERE = "model.text"


@dataclass(frozen=True, slots=True)
class Feed:
    """One input of a graph: what fills it, and the shape of a sample of it."""

    source: Source
    shape: Shape = ()

    @property
    def dtype(self) -> DType:
        """Features are floats, ids and classes 32-bit integers."""
        return DType.FLOAT32 if isinstance(self.source, RandomFeatures) else DType.INT32

    def spec(self, samples: int) -> TensorSpec:
        """Of so many samples."""
        return TensorSpec((samples, *self.shape), self.dtype)


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """One op; attributes are functions of the samples (see `per_sample.figure`)."""

    line: Lineage
    kind: str
    inputs: tuple[str, ...]
    labels: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    layer: int | None = None
    phase: Phase = Phase.FORWARD
    updates: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        """At most what it writes."""
        return (self.line.name, *(f"{self.line.name}.{label}" for label in self.labels))


@dataclass(frozen=True, slots=True)
class RecordedParameter:
    """One parameter: the attributes that led to it, its shape, how it starts, what its authors' file calls it."""

    path: Path
    shape: Shape
    init: str
    label: str = ""

    @property
    def name(self) -> str:
        """What the graph calls it."""
        return ".".join(map(str, self.path))


@dataclass(frozen=True, slots=True)
class Recording:
    """All of a recorded graph."""

    feeds: Mapping[str, Feed]
    parameters: tuple[RecordedParameter, ...]
    ops: tuple[RecordedOp, ...]
    loss: str
    count: str
    heads: int = 0

    @property
    def num_layers(self) -> int:
        """Repeated layers."""
        return 1 + max((op.layer for op in self.ops if op.layer is not None), default=-1)

    @property
    def num_trained(self) -> int:
        """Elements of parameters that no op of the model updates itself."""
        followed = {name for op in self.ops for name in op.updates}
        return sum(math.prod(p.shape) for p in self.parameters if p.name not in followed)

    def text(self) -> str:
        """The document."""
        document = {
            "inputs": {name: _feed_document(feed) for name, feed in self.feeds.items()},
            "parameters": [[list(p.path), list(p.shape), p.init, p.label] for p in self.parameters],
            "ops": [_op_document(op) for op in self.ops],
            "loss": self.loss,
            "count": self.count,
            "heads": self.heads,
        }
        return json.dumps(document, separators=(",", ":"), allow_nan=False)


class Recorded:
    """Base of models that are recordings."""

    __slots__ = ()

    text: str

    @property
    def recording(self) -> Recording:
        """What the text says."""
        return read_recording(self.text)

    @property
    def kept(self) -> Recording:
        """What is left of the recording for the layers that the model has."""
        return self.recording

    @property
    def parameters(self) -> int:
        """Number of trained elements; running statistics, say, which ops of the model update themselves, are not."""
        return self.kept.num_trained

    @property
    def heads(self) -> int:
        """Of attention, which a tensor axis shares out; 0 where there is none."""
        return self.recording.heads

    @property
    def tokens_per_sample(self) -> int:
        """The ids of a sample of text, or 1."""
        feeds = self.recording.feeds.values()
        return next((math.prod(feed.shape) for feed in feeds if isinstance(feed.source, Tokens)), 1)

    @property
    def batch(self) -> Mapping[str, Source]:
        """What fills the inputs."""
        return {name: feed.source for name, feed in self.recording.feeds.items()}

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        """Inputs in the order of the code."""
        return {name: feed.spec(micro_batch) for name, feed in self.recording.feeds.items()}

    def module(self) -> Module:
        """What was recorded, to be traced."""
        return RecordedModule(self.kept)

    def __str__(self) -> str:
        digest = hashlib.sha256(self.text.encode()).hexdigest()
        return f"recorded model {digest[:16]}"


@dataclass(frozen=True, slots=True)
class RecordedModel(Recorded):
    """One whose layers, if any, are not all alike."""

    text: str

    __str__ = Recorded.__str__

    def __post_init__(self) -> None:
        read_recording(self.text)

    @property
    def layers(self) -> int:
        """Repeated layers, one at least."""
        return max(1, self.recording.num_layers)


class _Holder(Module):
    """Has the parameters that one module of the recorded code had."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.held = dict(parameters)

    def own_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """As they were called."""
        yield from self.held.items()


class RecordedModule(Module):
    """Gives loss and count of a recording's ops."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        holders: dict[Path, dict[str, Parameter]] = {}
        for one in recording.parameters:
            holders.setdefault(one.path[:-1], {})[str(one.path[-1])] = Parameter(one.shape, one.init)
        self.holders = {path: _Holder(held) for path, held in holders.items()}

    def walk(self, path: Path = ()) -> Iterator[tuple[Module, Path]]:
        """This module, and what holds the parameters, each at its recorded place."""
        yield self, path
        yield from ((holder, (*path, *place)) for place, holder in self.holders.items())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs in their order -> (loss[], count[])."""
        recording, graph, tracer = self.recording, inputs[0].tracer.graph, inputs[0].tracer
        samples = inputs[0].shape[0]
        names = dict(zip(recording.feeds, (tensor.name for tensor in inputs), strict=True))
        for op in recording.ops:
            try:
                attrs: Attrs = {key: figure(found, samples) for key, found in op.attrs.items()}
                graph.add(
                    op.line,
                    op.kind,
                    [names.get(name, name) for name in op.inputs],
                    labels=op.labels,
                    updates=op.updates,
                    attrs=attrs,
                    phase=op.phase,
                    layer=op.layer,
                )
            except (LookupError, ValueError, TypeError, ArithmeticError) as error:
                told = f"{type(error).__name__}: {error}"
                raise GraphError([f"op {op.line.name}: {op.kind} of other operands than recorded ({told})"]) from error
        return Tensor(tracer, recording.loss), Tensor(tracer, recording.count)


@lru_cache(maxsize=16)
def read_recording(text: str) -> Recording:
    """A recording from its document.

    Raises:
        InputError: it is none.
    """
    if len(text) > MOST_TEXT:
        raise InputError("too long", where=_WHERE, got=len(text), expected=f"at most {MOST_TEXT} characters")
    found: Any = parse_json(text, _WHERE)
    try:
        feeds = {name: _feed_of(entry) for name, entry in found["inputs"].items()}
        parameters = tuple(_parameter_of(entry) for entry in found["parameters"])
        ops = tuple(_op_of(entry) for entry in found["ops"])
        ends = _text(found["loss"]), _text(found["count"])
        recording = Recording(feeds, parameters, ops, *ends, _whole(found["heads"], 0, LARGEST))
    except InputError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        got = f"{type(error).__name__}: {error}"
        raise InputError("not a recorded graph", where=_WHERE, got=got, hint="record it anew") from error
    _check(recording)
    return recording


def _check(recording: Recording) -> None:
    """Raise InputError unless all that is read is there, once, and layers are numbered one by one."""
    feeds, ops = recording.feeds, recording.ops
    if not feeds or not ops:
        raise InputError("a recorded graph without inputs or ops", where=_WHERE)
    known = {*feeds, *(parameter.name for parameter in recording.parameters)}
    if len(known) < len(feeds) + len(recording.parameters):
        raise InputError("a parameter or an input is there twice", where=_WHERE)
    for op in ops:
        missing = [name for name in (*op.inputs, *op.updates) if name not in known]
        if missing:
            raise InputError("an op reads what is not there", where=f"{_WHERE}: {op.line.name}", got=missing)
        known.update(op.outputs)
    written = {name for op in ops for name in op.outputs}
    if not {recording.loss, recording.count} <= written:
        raise InputError("nothing computes loss or count", where=_WHERE, got=[recording.loss, recording.count])
    layers = {op.layer for op in ops if op.layer is not None}
    if layers != set(range(len(layers))):
        raise InputError("layers that are not numbered one by one", where=_WHERE, got=sorted(layers))
    if any(layer_of(one.path) not in (None, *layers) for one in recording.parameters):
        raise InputError("a parameter of a layer without ops", where=_WHERE)


def _feed_document(feed: Feed) -> list[Any]:
    filled = next(word for word, source in _SOURCES.items() if type(feed.source) is source)
    match feed.source:
        case Tokens(below, shift):
            told: list[Any] = [below, shift]
        case Integers(below):
            told = [below]
        case RandomFeatures(label):
            told = [label]
    return [[PER_SAMPLE, *feed.shape], filled, *told]


def _feed_of(entry: Any) -> Feed:
    dims, word, *told = entry
    if dims[0] != PER_SAMPLE or word not in _SOURCES:
        raise InputError("not an input of a recorded graph", where=f"{_WHERE}: inputs", got=entry)
    figures: list[Any] = [_text(one) if word == "features" else _whole(one, 0, LARGEST) for one in told]
    return Feed(_SOURCES[word](*figures), _shape(dims[1:]))


def _parameter_of(entry: Any) -> RecordedParameter:
    path, shape, init, label = entry
    return RecordedParameter(_path(path), _shape(shape), _text(init), _text(label))


def _op_document(op: RecordedOp) -> dict[str, Any]:
    """Only what says something."""
    line = op.line
    found: dict[str, Any] = {"name": line.name, "kind": op.kind, "inputs": list(op.inputs)}
    more: dict[str, Any] = {
        "labels": list(op.labels),
        "attrs": dict(op.attrs),
        "updates": list(op.updates),
        "template": line.template,
        "origin": line.origin,
        "parameter": line.parameter,
        "lone_layer": line.lone_layer,
        "phase": "" if op.phase is Phase.FORWARD else str(op.phase),
    }
    found |= {key: value for key, value in more.items() if value}
    return found if op.layer is None else found | {"layer": op.layer}


def _op_of(entry: Any) -> RecordedOp:
    layer = entry.get("layer")
    lineage = ("template", "origin", "parameter", "lone_layer")
    line = Lineage(_text(entry["name"]), *(_text(entry.get(key, "")) for key in lineage))
    reads, labels, updates = (tuple(map(_text, entry.get(key, ()))) for key in ("inputs", "labels", "updates"))
    attrs = dict(entry.get("attrs", {}))
    return RecordedOp(
        line,
        _text(entry["kind"]),
        reads,
        labels,
        attrs,
        None if layer is None else _whole(layer, 0, MOST_LAYERS),
        Phase(entry.get("phase", "forward")),
        updates,
    )


def _path(parts: Any) -> Path:
    if not isinstance(parts, list) or not parts:
        raise InputError("no path of a parameter", where=f"{_WHERE}: parameters", got=parts)
    return tuple(part if isinstance(part, str) else _whole(part, 0, MOST_LAYERS) for part in parts)


def _shape(dims: Any) -> Shape:
    return tuple(_whole(dim, 1, MOST_SIZE) for dim in dims)


def _whole(value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError("not a whole number", where=_WHERE, got=value, expected=f"{least} to {most}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InputError("not a text", where=_WHERE, got=value)
    return value


FAMILY = Family("recorded", RecordedModel, {})
