"""Layout memory: what the choice of layouts makes stages hold, as usages of the nodes of the layout problem.

Stages lie one after another on the problem's time axis. What an owner holds counts as the share of every rank, for
owners are chosen so that ranks are about equally full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from strategy.comm.boxing import BoxingStep
from strategy.graph.signature import piece_specs
from strategy.ilp.problem import Usage
from strategy.layout.arrangement import Lifetime, Lifetimes, held_by_conversion
from strategy.layout.layout import Copy, Home
from strategy.lowering.memory import aligned
from strategy.program.program import ActKind
from strategy.sbp.placement import Space
from strategy.sbp.sbp import NdSbp, Owner
from strategy.sbp.tensor import TensorSpec
from strategy.space.binding_stages import binding_stages
from strategy.space.bundles import Bundle
from strategy.space.classes import Classes, Writer
from strategy.space.space import SearchSpace


@dataclass(slots=True)
class _Alike:
    """Conversions whose tensors live alike: one of them, and what every step holds, by position of the source."""

    source: Home
    steps: tuple[BoxingStep, ...]
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class LayoutMemory:
    """Counts the memory of a space, on the stages that bind; sizes are remembered."""

    space: SearchSpace
    lifetimes: Lifetimes
    binding: frozenset[int]
    sizes: dict[tuple[TensorSpec, NdSbp], int] = field(default_factory=dict, compare=False)
    """What a rank holds of a tensor, found once."""

    @staticmethod
    def of(classes: Classes, bundles: Sequence[Bundle]) -> LayoutMemory:
        """Of the homes that classes decide and the copies that their bundles make."""
        space = classes.space
        lifetimes = Lifetimes(space.graph, space.stages, space.pipeline)
        return LayoutMemory(space, lifetimes, binding_stages(classes, bundles, lifetimes))

    def of_home(self, value: str, stage: int, writer: Writer) -> list[Usage]:
        """What a value holds where it lives, by the choice of its writer."""
        if stage not in self.binding:
            return []
        return [self._usage(value, stage, self.lifetimes.home(value, stage), writer.homes)]

    def of_loaded(self, bundle: Bundle, layout: NdSbp) -> list[Usage]:
        """What loaded copies hold where they are unused, and where they are used."""
        return [
            self._usage(value, stage, self.lifetimes.copy(value, stage, arrives=True), [None, layout])
            for value, _, stage in bundle.instances
            if stage in self.binding
        ]

    def of_copies(self, bundle: Bundle, sources: Sequence[NdSbp], layout: NdSbp) -> list[Usage]:
        """What copies and their conversions hold where the copies are unused, and by the source that they come from."""
        usages: list[Usage] = []
        conversions: dict[tuple[int, int], list[_Alike]] = {}
        for value, home, stage in bundle.instances:
            if self.space.graph.values[value].space is Space.HOST or not self.binding & {home, stage}:
                continue
            if (home, stage) not in conversions:
                conversions[home, stage] = self._conversions(bundle.spec, sources, home, stage, layout)
            amounts: dict[tuple[int, int], list[int]] = {}
            for alike in conversions[home, stage]:
                chain = held_by_conversion(self.lifetimes, Copy(value, stage, layout), alike.source, alike.steps)
                for step, (at, _, lifetime, _) in enumerate(chain):
                    if at not in self.binding:
                        continue
                    held = amounts.setdefault(self._on_axis(at, lifetime), [0] * (len(sources) + 1))
                    for position, nbytes in alike.held.items():
                        held[position + 1] += nbytes[step] * lifetime.blocks
            usages += [Usage(begin, end, tuple(held)) for (begin, end), held in amounts.items()]
        return usages

    def _conversions(
        self, spec: TensorSpec, sources: Sequence[NdSbp], home: int, stage: int, layout: NdSbp
    ) -> list[_Alike]:
        """The conversions to one copy; those whose transfers lie at the same steps hold memory at the same times."""
        found: dict[tuple[bool, ...], _Alike] = {}
        for position, source in enumerate(sources):
            if (home, source) == (stage, layout):
                continue
            steps = self.space.converter.steps(spec, Home(home, source), stage, layout)
            shape = tuple(step.kind is ActKind.TRANSFER for step in steps)
            if shape not in found:
                found[shape] = _Alike(Home(home, source), steps)
            found[shape].held[position] = tuple(self._nbytes(spec, step.target) for step in steps)
        return list(found.values())

    def _usage(self, value: str, stage: int, lifetime: Lifetime, layouts: Sequence[NdSbp | None]) -> Usage:
        """What one tensor holds by its layout; what there is none of holds nothing."""
        known = self.space.graph.values[value]
        begin, end = self._on_axis(stage, lifetime)
        blocks = 0 if known.space is Space.HOST else lifetime.blocks
        amounts = tuple(0 if layout is None else self._nbytes(known.spec, layout) * blocks for layout in layouts)
        return Usage(begin, end, amounts)

    def _on_axis(self, stage: int, lifetime: Lifetime) -> tuple[int, int]:
        offset = stage * self.lifetimes.horizon
        return offset + lifetime.begin, offset + lifetime.end

    def _nbytes(self, spec: TensorSpec, layout: NdSbp) -> int:
        """What a rank holds of a tensor, aligned."""
        known = self.sizes.get((spec, layout))
        if known is None:
            mesh = self.space.mesh
            owned = (parts for sbp, parts in zip(layout, mesh, strict=True) if isinstance(sbp, Owner))
            nbytes = piece_specs([spec], [layout], mesh)[0].nbytes
            known = self.sizes[spec, layout] = aligned(-(-nbytes // math.prod(owned)))
        return known
