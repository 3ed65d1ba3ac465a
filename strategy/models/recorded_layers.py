"""Recorded models of alike layers, which a search may solve once.

Some layers of such a model are again one: the first ones and the last one, each reading what its neighbour wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from strategy.base.errors import InputError
from strategy.graph.graph import Path, layer_of, template_of
from strategy.models.base import Family
from strategy.models.recorded import Recorded, RecordedOp, Recording

Place = tuple[str, int | None]
"""What a value is called in every layer, and its layer; outside of layers, its name."""
LEAST = 3
"""Layers that a search wants at least: a first one, one between, a last one."""


@dataclass(frozen=True, slots=True)
class RecordedLayers(Recorded):
    """`layers` of the recorded ones."""

    layers: int
    text: str

    __str__ = Recorded.__str__

    def __post_init__(self) -> None:
        recorded = self.recording.num_layers
        if not (self.layers == recorded or LEAST <= self.layers < recorded):
            where, expected = "recorded model: layers", f"{LEAST} to {recorded}"
            raise InputError("not that many layers were recorded", where=where, got=self.layers, expected=expected)

    @property
    def kept(self) -> Recording:
        """The recording with the first layers and the last one."""
        return shortened_to(self.recording, self.layers)


def has_alike_layers(recording: Recording) -> bool:
    """Whether any layers between the first and the last can be left out: all are alike, and each reads the one before.

    What lies outside of the layers reads the first, the last, or all of them.
    """
    count, places = recording.num_layers, _places(recording)
    if count <= LEAST:
        return False
    by_layer: dict[int, list[tuple[object, ...]]] = {layer: [] for layer in range(count)}
    reads: dict[int, list[tuple[object, ...]]] = {layer: [] for layer in range(count)}
    outside: dict[tuple[str, str], set[int]] = {}
    for op in recording.ops:
        found = [places[name] for name in (*op.inputs, *op.updates)]
        if op.layer is None:
            for template, layer in found:
                if layer is not None:
                    outside.setdefault((op.line.name, template), set()).add(layer)
            continue
        attrs = tuple(sorted((key, str(value)) for key, value in op.attrs.items()))
        by_layer[op.layer].append((op.line.template, op.kind, op.labels, attrs, op.phase, len(op.inputs)))
        reads[op.layer].append(tuple((t, None if at is None else at - op.layer) for t, at in found))
        if any(at is not None and at - op.layer not in (0, -1) for _, at in found):
            return False
    parameters = [
        sorted((template_of(p.path), p.shape) for p in recording.parameters if layer_of(p.path) == layer)
        for layer in range(count)
    ]
    return (
        all(by_layer[layer] == by_layer[0] and parameters[layer] == parameters[0] for layer in range(count))
        and all(reads[layer] == reads[1] for layer in range(1, count))
        and all(len(layers) == count or layers <= {0, count - 1} for layers in outside.values())
    )


def shortened_to(recording: Recording, layers: int) -> Recording:
    """A recording of alike layers with the first ones and the last one."""
    count, places = recording.num_layers, _places(recording)
    if layers == count:
        return recording
    kept = {layer: layer for layer in range(layers - 1)} | {count - 1: layers - 1}
    called = {(op.line.template, op.layer): op.line.name for op in recording.ops}
    known: dict[Place, str] = {}
    parameters = tuple(
        replace(one, path=_at_layer(one.path, kept))
        for one in recording.parameters
        if layer_of(one.path) in kept or layer_of(one.path) is None
    )
    known.update(
        ((template_of(p.path) if layer_of(p.path) is not None else p.name, layer_of(p.path)), p.name)
        for p in parameters
    )
    known.update(((name, None), name) for name in recording.feeds)
    ops = []
    for op in recording.ops:
        if op.layer is not None and op.layer not in kept:
            continue
        here = None if op.layer is None else kept[op.layer]
        name = op.line.name if here is None else called[op.line.template, here]
        changed = replace(
            op,
            line=replace(op.line, name=name, origin=_origin(op, recording, called, here)),
            layer=here,
            inputs=tuple(_there(op, op.inputs, places, kept, known)),
            updates=tuple(_there(op, op.updates, places, kept, known)),
        )
        for before, after in zip(op.outputs, changed.outputs, strict=True):
            known[places[before][0], here] = after
        ops.append(changed)
    loss, count_name = (known[places[name][0], places[name][1]] for name in (recording.loss, recording.count))
    return replace(recording, parameters=parameters, ops=tuple(ops), loss=loss, count=count_name)


def _origin(op: RecordedOp, recording: Recording, called: Mapping[Place, str], layer: int | None) -> str:
    """The op of the model that an op was made for, as that is called in a layer."""
    if not op.line.origin or layer is None:
        return op.line.origin
    made_for = next(one for one in recording.ops if one.line.name == op.line.origin)
    return called[made_for.line.template, None if made_for.layer is None else layer]


def _there(
    op: RecordedOp, names: tuple[str, ...], places: dict[str, Place], kept: dict[int, int], known: dict[Place, str]
) -> Iterator[str]:
    """What an op reads, as it is called now; what is left out, an op that reads all layers does not read."""
    for name in names:
        template, layer = places[name]
        if layer is None:
            yield known[template, None]
        elif op.layer is not None:
            yield known[template, kept[op.layer] + layer - op.layer]
        elif layer in kept:
            yield known[template, kept[layer]]


def _places(recording: Recording) -> dict[str, Place]:
    """Value -> what it is called in every layer, and its layer."""
    found: dict[str, Place] = {name: (name, None) for name in recording.feeds}
    for one in recording.parameters:
        layer = layer_of(one.path)
        found[one.name] = (one.name if layer is None else template_of(one.path), layer)
    for op in recording.ops:
        template = op.line.name if op.layer is None else op.line.template
        for name, label in zip(op.outputs, ("", *op.labels), strict=True):
            found[name] = (f"{template}.{label}" if label else template, op.layer)
    return found


def _at_layer(path: Path, kept: dict[int, int]) -> Path:
    layer = layer_of(path)
    if layer is None:
        return path
    inner = max(at for at, part in enumerate(path) if isinstance(part, int))
    return (*path[:inner], kept[layer], *path[inner + 1 :])


FAMILY = Family("recorded-layers", RecordedLayers, {})
