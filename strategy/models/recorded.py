"""Recorded models: a model that is given by its graph, not by dimensions.

Programs of other frameworks and modules that users write are traced once (`recording`) and kept as text, so that a plan
holds all of its model: it is verified, simulated and trained without the file or the code that the model came from.

The text is one JSON object:

    inputs      [name, dims, dtype, source]                       source: ["tokens", below, shift], ["integers", below],
                                                                  ["features", label]
    variables   [path, shape, init, what its authors call it]
    ops         [name, template, origin, kind, inputs, updates, labels, attributes, phase, layer]
    loss, count, tokens, heads

A size that grows with the micro-batch b is written [a, c] and means a + c b; an attribute may also be {"size": [a, c]},
{"figure": [a, c]}, the same as a float, or {"per_sample": k}, 1 / (k b).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from strategy.base.errors import GraphError, InputError
from strategy.base.files import parse_json
from strategy.base.limits import LARGEST
from strategy.graph.graph import Attr, Attrs, Lineage, Path, Phase, layer_of
from strategy.models.base import Family, Integers, RandomFeatures, Source, Tokens
from strategy.nn.module import Module, Parameter
from strategy.nn.tracer import Tensor
from strategy.sbp.tensor import DType, Shape, TensorSpec

MOST_TEXT = 64 * 2**20
"""Characters of a recording."""
WHERE = "recorded model"


@dataclass(frozen=True, slots=True)
class Size:
    """a + c b, for a micro-batch of b samples."""

    fixed: int
    per_sample: int = 0

    def at(self, micro_batch: int) -> int:
        """Of a micro-batch."""
        return self.fixed + self.per_sample * micro_batch


@dataclass(frozen=True, slots=True)
class RecordedInput:
    """One input, and what fills it."""

    name: str
    dims: tuple[Size, ...]
    dtype: DType
    source: Source


@dataclass(frozen=True, slots=True)
class RecordedVariable:
    """One variable; `origin` is what the authors of the program call it."""

    path: Path
    shape: Shape
    init: str
    origin: str

    @property
    def name(self) -> str:
        """As in the graph."""
        return ".".join(map(str, self.path))


RecordedAttr = Attr | Size | tuple[Size, ...] | float


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """One op; `inverse` are attributes that are 1 / (k b), `growing` figures that are whole and grow with b."""

    name: str
    template: str
    origin: str
    kind: str
    inputs: tuple[str, ...]
    updates: tuple[str, ...]
    labels: tuple[str, ...]
    sizes: Mapping[str, Size | tuple[Size, ...]]
    figures: Attrs
    inverse: Mapping[str, int]
    growing: Mapping[str, Size]
    phase: Phase
    layer: int | None

    def attrs(self, micro_batch: int) -> Attrs:
        """The attributes for a micro-batch."""
        sizes = {
            key: one.at(micro_batch) if isinstance(one, Size) else tuple(size.at(micro_batch) for size in one)
            for key, one in self.sizes.items()
        }
        grown = {key: float(one.at(micro_batch)) for key, one in self.growing.items()}
        return {**self.figures, **sizes, **grown, **{key: 1.0 / (k * micro_batch) for key, k in self.inverse.items()}}


@dataclass(frozen=True, slots=True)
class Recording:
    """A text that has been read."""

    inputs: tuple[RecordedInput, ...]
    variables: tuple[RecordedVariable, ...]
    ops: tuple[RecordedOp, ...]
    loss: str
    count: str
    tokens: int
    heads: int


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """A model by its recording."""

    text: str

    def __post_init__(self) -> None:
        recording_of(self.text)

    @property
    def layers(self) -> int:
        """Repeated layers."""
        return max((op.layer + 1 for op in recording_of(self.text).ops if op.layer is not None), default=1)

    @property
    def heads(self) -> int:
        """Of attention, which a tensor axis shares out; 0 where there is none."""
        return recording_of(self.text).heads

    @property
    def parameters(self) -> int:
        """Trained elements: of all variables but those that the model itself updates, such as running statistics."""
        found = recording_of(self.text)
        kept = {name for op in found.ops for name in op.updates}
        return sum(math.prod(one.shape) for one in found.variables if one.name not in kept)

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sample; 1 where there are none."""
        return recording_of(self.text).tokens

    @property
    def batch(self) -> Mapping[str, Source]:
        """What fills the inputs."""
        return {one.name: one.source for one in recording_of(self.text).inputs}

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        """Inputs and labels."""
        return {
            one.name: TensorSpec(tuple(size.at(micro_batch) for size in one.dims), one.dtype)
            for one in recording_of(self.text).inputs
        }

    def module(self) -> Module:
        """The recording, to be traced."""
        return RecordedModule(recording_of(self.text))


class RecordedHolder(Module):
    """Parameters at one path."""

    def __init__(self, held: Mapping[str, Parameter]) -> None:
        self.held = held

    def own_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """What it holds."""
        yield from self.held.items()


class RecordedModule(Module):
    """Appends the ops of a recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        held: dict[Path, dict[str, Parameter]] = {}
        for one in recording.variables:
            held.setdefault(one.path[:-1], {})[str(one.path[-1])] = Parameter(one.shape, one.init)
        self.members = {path: RecordedHolder(parameters) for path, parameters in held.items()}

    def walk(self, path: Path = ()) -> Iterator[tuple[Module, Path]]:
        """This module, and one per path that holds parameters."""
        yield self, path
        for below, member in self.members.items():
            yield member, (*path, *below)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs -> (loss[], count[])."""
        recording, tracer = self.recording, inputs[0].tracer
        micro_batch = inputs[0].shape[0]
        for op in recording.ops:
            line = Lineage(op.name, op.template, op.origin)
            tracer.graph.add(
                line,
                op.kind,
                op.inputs,
                labels=op.labels,
                updates=op.updates,
                attrs=op.attrs(micro_batch),
                phase=op.phase,
                layer=op.layer,
            )
        return Tensor(tracer, recording.loss), Tensor(tracer, recording.count)


@lru_cache(maxsize=16)
def recording_of(text: str) -> Recording:
    """The recording that a text is.

    Raises:
        InputError: it is none.
    """
    if len(text) > MOST_TEXT:
        raise InputError("too long", where=WHERE, got=len(text), expected=f"at most {MOST_TEXT} characters")
    content = parse_json(text, WHERE)
    try:
        found = _recording(content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"not a recording: {error}", where=WHERE) from error
    _check(found)
    return found


def _recording(content: Any) -> Recording:
    return Recording(
        tuple(_input(one) for one in content["inputs"]),
        tuple(
            RecordedVariable(_path(path), _whole(shape), _text(init), _text(origin))
            for path, shape, init, origin in content["variables"]
        ),
        tuple(_op(one) for one in content["ops"]),
        _text(content["loss"]),
        _text(content["count"]),
        _integer(content["tokens"]),
        _integer(content["heads"]),
    )


def _input(record: Any) -> RecordedInput:
    name, dims, dtype, source = record
    kind, *figures = source
    sources: Mapping[str, Any] = {"tokens": Tokens, "integers": Integers, "features": RandomFeatures}
    checked = [_text(one) if kind == "features" else _integer(one) for one in figures]
    return RecordedInput(_text(name), tuple(_size(dim) for dim in dims), DType(dtype), sources[kind](*checked))


def _op(record: Any) -> RecordedOp:
    name, template, origin, kind, inputs, updates, labels, attrs, phase, layer = record
    sizes: dict[str, Size | tuple[Size, ...]] = {}
    figures: dict[str, Attr] = {}
    inverse: dict[str, int] = {}
    growing: dict[str, Size] = {}
    for key, value in attrs.items():
        if isinstance(value, dict):
            if "per_sample" in value:
                inverse[key] = _integer(value["per_sample"], 1)
            elif "figure" in value:
                growing[key] = _size(value["figure"])
            else:
                sizes[key] = _size(value["size"])
        elif isinstance(value, list):
            if any(isinstance(one, list) for one in value):
                sizes[key] = tuple(_size(one) for one in value)
            else:
                figures[key] = _numbers(value)
        else:
            figures[key] = value if isinstance(value, str) else _number(value)
    reads, rewrites, others = (tuple(_text(one) for one in part) for part in (inputs, updates, labels))
    return RecordedOp(
        _text(name),
        _text(template),
        _text(origin),
        _text(kind),
        reads,
        rewrites,
        others,
        sizes,
        figures,
        inverse,
        growing,
        Phase(phase),
        None if layer is None else _integer(layer),
    )


def _size(value: Any) -> Size:
    if isinstance(value, list):
        fixed, per_sample = value
        return Size(_integer(fixed, -LARGEST), _integer(per_sample, -LARGEST))
    return Size(_integer(value, -LARGEST))


def _integer(value: Any, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST:
        raise InputError("not a whole number", where=WHERE, got=value, expected=f"{least} to {LARGEST}")
    return value


def _number(value: Any) -> int | float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or (isinstance(value, int) and abs(value) > LARGEST)
    ):
        raise InputError("not a number", where=WHERE, got=value)
    return value


def _numbers(value: list[Any]) -> tuple[int, ...] | tuple[float, ...]:
    return tuple(_number(one) for one in value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InputError("not a text", where=WHERE, got=value)
    return value


def _whole(value: Any) -> Shape:
    return tuple(_integer(one, 1) for one in value)


def _path(value: Any) -> Path:
    if not isinstance(value, list) or not value:
        raise InputError("not a path", where=WHERE, got=value)
    return tuple(one if isinstance(one, str) else _integer(one) for one in value)


def _check(found: Recording) -> None:
    """Raise InputError unless every input has samples, and every layer some op."""
    problems = []
    if not found.inputs or any(not one.dims or one.dims[0] != Size(0, 1) for one in found.inputs):
        problems.append("an input whose first dim is not the samples")
    layers = {op.layer for op in found.ops if op.layer is not None}
    if layers != set(range(len(layers))):
        problems.append("layers that are not numbered one by one")
    names = [one.name for one in found.variables] + [one.name for one in found.inputs]
    if len(set(names)) < len(names):
        problems.append("a variable or an input is there twice")
    if any(layer_of(one.path) not in (None, *layers) for one in found.variables):
        problems.append("a variable of a layer without ops")
    if problems:
        raise GraphError(problems, where=WHERE)


def as_text(content: Mapping[str, Any]) -> str:
    """A recording's JSON, the same for the same content."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=True)


FAMILY = Family("recorded", RecordedModel, {})
"""Models of this kind come from files and from users' own modules."""
