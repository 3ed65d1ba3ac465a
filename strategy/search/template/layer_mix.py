"""Layer mix: layers between the first and the last that are laid out in two ways, in the same share on every stage.

    stage 0   first A B A B A      stage 1   A B A B A B      last stage   B A B A B last

What a step takes and a stage holds, by the linear functions that bound them, is then what it would be with layers all
alike, each of which takes and holds the mean of both: bounds over mixes of layouts are bounds of these plans. Where
what is fast does not fit, and what fits is slow, a mix fills the memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from strategy.bounds.pipeline_parts import FIRST, LAST, IntArray, parts_at
from strategy.graph.graph import Graph, Op, Phase
from strategy.graph.signature import Signature
from strategy.layout.config import PlanConfig
from strategy.layout.layout import Stages, home_of, layer_runs
from strategy.layout.schedule import at_position
from strategy.space.short_model import MIDDLE

PARTS_MIXED = 4
"""The first part, layers laid out in one way and in the other, and the last part."""
OTHER = 2


@dataclass(frozen=True, slots=True)
class LayerMix:
    """The other way to treat layers, and the share of the layers of every stage that are treated so.

    `keeps`: whether these keep all, though the configuration computes something again.
    """

    signatures: Mapping[str, Signature]
    share: Fraction
    keeps: bool = False


def mixed_layers(config: PlanConfig, layers: int, share: Fraction) -> frozenset[int]:
    """The layers of a deep model that are laid out in the other way: of those of every stage, spread evenly."""
    runs = config.runs or layer_runs(layers, config.schedule, config.pp, config.virtual_stages)
    of_stage: dict[int, list[int]] = {}
    begin = 0
    for place, run in enumerate(runs):
        stage, _ = at_position(config.schedule, config.pp, place)
        of_stage.setdefault(stage, []).extend(range(max(begin, 1), min(begin + run, layers - 1)))
        begin += run
    return frozenset(
        layer
        for between in of_stage.values()
        for i, layer in enumerate(between)
        if _nearest(share * (i + 1)) > _nearest(share * i)
    )


def _nearest(number: Fraction) -> int:
    """The nearest whole number; of two, the larger."""
    return (2 * number.numerator + number.denominator) // (2 * number.denominator)


def mixed_at(config: PlanConfig, layers: int, share: Fraction) -> IntArray:
    """(stages, laps, 4): how many of the first part, of both ways between, and of the last part are where."""
    alike, mixed = parts_at(config, layers), mixed_layers(config, layers, share)
    found = np.zeros((*alike.shape[:-1], PARTS_MIXED), np.int64)
    found[..., FIRST], found[..., -1] = alike[..., FIRST], alike[..., LAST]
    runs = config.runs or layer_runs(layers, config.schedule, config.pp, config.virtual_stages)
    begin = 0
    for place, run in enumerate(runs):
        stage, lap = at_position(config.schedule, config.pp, place)
        found[stage, lap, OTHER] = sum(layer in mixed for layer in range(begin, begin + run))
        begin += run
    found[..., MIDDLE] = alike[..., MIDDLE] - found[..., OTHER]
    return found


def mixes_at(config: PlanConfig, layers: int, count: int) -> IntArray:
    """(count + 1, stages, laps, 4): the same of the shares 0, 1 / count, ..., 1; not to be changed."""
    return _known_shares(config.pipeline, layers, count)


@lru_cache(maxsize=1 << 10)
def _known_shares(pipeline: PlanConfig, layers: int, count: int) -> IntArray:
    found = np.array([mixed_at(pipeline, layers, Fraction(numerator, count)) for numerator in range(count + 1)])
    found.flags.writeable = False
    return found


def most_between(config: PlanConfig, layers: int) -> int:
    """So many layers between the first and the last are on a stage at most."""
    return int(parts_at(config, layers)[..., MIDDLE].sum(1).max())


@dataclass(frozen=True, slots=True)
class Seam:
    """All by which a layer between meets its neighbours and what is of no layer, in a short model.

    Where two ways to lay it out have the same, a layer of one stands beside a layer of the other for what each takes
    alone: nothing more is converted but single numbers.

    Attributes:
        handed_on: what is written, and how it is read at once.
        read_again: how backward passes read what the forward pass of another layer wrote. Layers that compute again
            read copies of that, so that ways which differ in this do not differ in what they hand on.
    """

    handed_on: Hashable
    read_again: Hashable

    def meets(self, other: Seam, *, alike: bool) -> bool:
        """Whether layers of both may stand beside each other; `alike`: whether both compute the same again."""
        return self.handed_on == other.handed_on and (not alike or self.read_again == other.read_again)


def seam_of(graph: Graph, stages: Stages, signatures: Mapping[str, Signature]) -> Seam:
    """How a layer between of a short model meets the others under signatures; both ends are of one way alone."""
    found, again = list[Hashable](), list[Hashable]()
    for name, readers in graph.consumers.items():
        layer = _layer_of(graph, name, readers)
        outside = [op for op in readers if op.layer != layer and MIDDLE in (layer, op.layer)]
        outside = [] if graph.values[name].spec.size == 1 else outside
        home = home_of(graph, stages, signatures, name) if outside else None
        if home is None:
            continue
        found.append((name, home.layout))
        writer = graph.producer.get(name)
        is_saved = writer is not None and writer.phase is Phase.FORWARD
        for op in outside:
            signature = signatures[op.name]
            if op.layer is not None:
                wanted = tuple(nd for read, nd in zip(op.inputs, signature.inputs, strict=True) if read == name)
                reads = again if is_saved and op.phase is not Phase.FORWARD else found
                reads.append((name, op.name, wanted))
            else:  # what reads something of every layer reads all as it reads those of one way
                found.append((op.name, signature.outputs, signature.updates))
    return Seam(tuple(found), tuple(again))


def _layer_of(graph: Graph, name: str, readers: Sequence[Op]) -> int | None:
    """The layer that writes a value; of what nobody writes, the one that reads it alone."""
    writer = graph.producer.get(name)
    if writer is not None:
        return writer.layer
    layers = {op.layer for op in readers} - {None}
    return layers.pop() if len(layers) == 1 else None
