"""Bundles: values of one template that the same classes write and read, whose copies are therefore decided together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from strategy.graph.graph import deciding_op
from strategy.sbp.tensor import TensorSpec
from strategy.search.layouts.classes import Classes, OpClass, Writer

Instance = tuple[str, int, int]
"""(value, the stage that it lives on or -1 where it is loaded, the stage of its readers)."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Values of one template with alike writers and readers: where each instance is and goes."""

    writer: Writer | None
    readers: tuple[tuple[OpClass, tuple[int, ...]], ...]
    """(class, at which of its inputs it reads the value)."""
    spec: TensorSpec
    instances: tuple[Instance, ...]
    moves: Mapping[tuple[int, int], int]
    """(home stage, readers' stage) -> how often a step of the pipeline makes that conversion."""


@dataclass(slots=True)
class _BundleBuilder:
    """A bundle whose instances are added one by one."""

    writer: Writer | None
    readers: tuple[tuple[OpClass, tuple[int, ...]], ...]
    spec: TensorSpec
    instances: list[Instance] = field(default_factory=list)
    moves: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, value: str, home: int, stage: int, times: int) -> None:
        """Add a value that `times` conversions a step bring from its home to its readers."""
        self.instances.append((value, home, stage))
        self.moves[home, stage] = self.moves.get((home, stage), 0) + times

    def freeze(self) -> Bundle:
        """The bundle."""
        return Bundle(self.writer, self.readers, self.spec, tuple(self.instances), MappingProxyType(self.moves))


def bundles(classes: Classes) -> list[Bundle]:
    """All values that are read, by the stage of their readers."""
    found: dict[object, _BundleBuilder] = {}
    space = classes.space
    for name, value in space.graph.values.items():
        writer, home, decider = classes.writer(name), _home_stage(classes, name), deciding_op(space.graph, name)
        times = space.times(value.rate) * (1 if decider is None else space.count(decider.name))
        for stage, readers in _readers(classes, name).items():
            wanted = tuple((reader.index, positions) for reader, positions in readers)
            source = None if writer is None else writer.identity
            key = (source, wanted, home == stage, value.spec, value.role)
            found.setdefault(key, _BundleBuilder(writer, readers, value.spec)).add(name, home, stage, times)
    return [builder.freeze() for builder in found.values()]


def _home_stage(classes: Classes, value: str) -> int:
    stages = classes.space.stages
    if value in classes.held:
        return stages.homes[value].stage
    decider = deciding_op(classes.space.graph, value)
    return -1 if decider is None else stages.stage_of[decider.name]


def _readers(classes: Classes, value: str) -> dict[int, tuple[tuple[OpClass, tuple[int, ...]], ...]]:
    """Stage -> the classes that read a value there, each with its positions."""
    by_stage: dict[int, dict[int, tuple[OpClass, tuple[int, ...]]]] = {}
    for op in classes.space.graph.consumers[value]:
        reader = classes.of_op[op.name]
        found = by_stage.setdefault(classes.space.stages.stage_of[op.name], {})
        known = found[reader.index][1] if reader.index in found else ()
        positions = {i for i, read in enumerate(op.inputs) if read == value}
        found[reader.index] = (reader, tuple(sorted(positions.union(known))))
    return {stage: tuple(found.values()) for stage, found in by_stage.items()}
