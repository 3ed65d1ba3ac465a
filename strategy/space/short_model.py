"""Short model: a deep model whose repeated layers are alike, with three of them left.

    embedding -- first layer -- middle layer -- last layer -- head

The middle one stands for all but the first and the last. What is said of it once holds as often as it is repeated, so
that a problem on the short model, with its parts counted so, costs what the same choice costs on the deep one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import cast

from strategy.base.identity import Identity
from strategy.graph.graph import Graph, Op
from strategy.graph.signature import Signature
from strategy.layout.layout import assign_stages
from strategy.models import Model
from strategy.sbp.placement import Placement

LAYERS = 3
MIDDLE = 1
"""The layer that stands for several."""


def shortened(model: Model) -> Model | None:
    """The model with three layers; None where it has no more, or where they are more than a number."""
    return _shortened(Identity(model))


@lru_cache(maxsize=8)
def _shortened(known: Identity) -> Model | None:
    model = cast(Model, known.held)
    fields = {field.name for field in dataclasses.fields(type(model))}  # type: ignore[arg-type]
    if "layers" not in fields or model.layers <= LAYERS:
        return None
    short: Model = dataclasses.replace(model, layers=LAYERS)  # type: ignore[type-var]
    return short


def multiplicities(graph: Graph, layers: int) -> dict[str, int]:
    """Op of a short model -> how many ops of one with so many layers it stands for, where that is not one."""
    return {op.name: layers - LAYERS + 1 for op in graph.ops if op.layer == MIDDLE}


def places_of(graph: Graph) -> Mapping[str, int]:
    """Op of a short model -> the layer that it runs beside: that of a pipeline with a stage for each."""
    return _places(Identity(graph))


@lru_cache(maxsize=8)
def _places(known: Identity) -> Mapping[str, int]:
    anywhere = Placement((0,), (1,), ("data",))
    return MappingProxyType(dict(assign_stages(cast(Graph, known.held), (anywhere,) * LAYERS).stage_of))


Way = tuple[Graph, Mapping[str, Signature]]
"""The graph of a short model, and signatures of its ops."""


def expanded(
    way: Way, deep: Graph, other: Way | None = None, mixed: Collection[int] = ()
) -> dict[str, Signature] | None:
    """The signatures of a short model's ops, as all ops of the deep one have them.

    None where the deep one has an op that no op of the short one is like: its layers are not alike then.

    Args:
        way: the short model.
        deep: the graph of the deep one.
        other: the short model where layers are treated in another way.
        mixed: the deep one's layers that are, none of them the first or the last.
    """
    other = other or way
    short, signatures = way
    known, known_other = ({_likeness(graph, op, LAYERS): op for op in graph.ops} for graph, _ in (way, other))
    found: dict[str, Signature] = {}
    for op in deep.ops:
        likeness = _likeness(deep, op, deep.num_layers)
        is_mixed = op.layer in mixed
        like = (known_other if is_mixed else known).get(likeness)
        if like is None:
            return None
        signature: Signature | None = (other[1] if is_mixed else signatures)[like.name]
        if len(op.inputs) != len(like.inputs):
            signature = _as_wide(short, like, signatures[like.name], deep, op)
        if signature is None:
            return None
        found[op.name] = signature
    return found


def _likeness(graph: Graph, op: Op, layers: int) -> tuple[str, int | None]:
    """What ops have in common: their template, and whether their layer is the first, the last or between."""
    if op.layer is None:
        return op.name, None
    return f"{op.repeats and 'again '}{op.template or op.name}", min(op.layer, MIDDLE) + (op.layer == layers - 1)


def _as_wide(short: Graph, like: Op, signature: Signature, deep: Graph, op: Op) -> Signature | None:
    """A signature for an op that reads something of every layer, and so more values than the op that it is like.

    It reads all layers as that op reads those of one way: what layers of the other way write is converted. Terms and
    what is whole are no sum.
    """
    alike = [_likeness(short, short.producer[name], LAYERS) for name in like.inputs]
    known = dict(zip(alike, signature.inputs, strict=True))
    inputs = [known.get(_likeness(deep, deep.producer[name], deep.num_layers)) for name in op.inputs]
    if None in inputs:
        return None
    return dataclasses.replace(signature, inputs=tuple(layout for layout in inputs if layout is not None))
