"""Bundles: values of one template that the same classes write and read, whose copies are therefore decided together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from strategy.graph.graph import Phase, deciding_op
from strategy.layout.arrangement import Lifetimes, owner_of
from strategy.layout.covered import covers_ns
from strategy.layout.objective import account_of, conversion_account, message_account
from strategy.layout.step_times import COVERED
from strategy.sbp.tensor import Rate, TensorSpec
from strategy.space.classes import Classes, OpClass, Writer
from strategy.space.counts import IntArray
from strategy.space.space import SearchSpace, Weight

Instance = tuple[str, int, int]
"""(value, the stage that it lives on or -1 where it is loaded, the stage of its readers)."""
Weights = tuple[Weight, Weight, Weight]
"""What a nanosecond of a conversion counts: at home, on the way, and where it arrives; on one stage, what is waited for
of it, and what is covered."""
Move = tuple[int, int, int]
"""(home stage, readers' stage, for how many nanoseconds such conversions are covered)."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Values of one template with alike writers and readers: where each instance is and goes."""

    writer: Writer | None
    readers: tuple[tuple[OpClass, tuple[int, ...]], ...]
    """(class, at which of its inputs it reads the value)."""
    spec: TensorSpec
    instances: tuple[Instance, ...]
    moves: Mapping[Move, Weights]
    """What such a conversion of all instances costs."""


@dataclass(slots=True)
class _BundleBuilder:
    """A bundle whose instances are added one by one."""

    writer: Writer | None
    readers: tuple[tuple[OpClass, tuple[int, ...]], ...]
    spec: TensorSpec
    instances: list[Instance] = field(default_factory=list)
    moves: dict[Move, Weights] = field(default_factory=dict)

    def add(self, value: str, move: Move, weights: Weights) -> None:
        """Add a value whose conversion from its home to its readers has some weights."""
        home, stage, _ = move
        self.instances.append((value, home, stage))
        leaving, moving, arriving = self.moves.get(move, (0, 0, 0))
        self.moves[move] = leaving + weights[0], moving + weights[1], arriving + weights[2]

    def freeze(self) -> Bundle:
        """The bundle."""
        return Bundle(self.writer, self.readers, self.spec, tuple(self.instances), MappingProxyType(self.moves))


def bundles(classes: Classes) -> list[Bundle]:
    """All values that are read, by the stage of their readers."""
    found: dict[object, _BundleBuilder] = {}
    space = classes.space
    lifetimes = Lifetimes(space.graph, space.stages, space.pipeline)
    for name, value in space.graph.values.items():
        writer, home = classes.writer(name), _home_stage(classes, name)
        for stage, readers in _readers(classes, name).items():
            wanted = tuple((reader.index, positions) for reader, positions in readers)
            source = None if writer is None else writer.identity
            key = (source, wanted, home == stage, value.spec, value.role)
            builder = found.setdefault(key, _BundleBuilder(writer, readers, value.spec))
            builder.add(name, *_move(lifetimes, space, name, home, stage))
    return [builder.freeze() for builder in found.values()]


def _move(lifetimes: Lifetimes, space: SearchSpace, name: str, home: int, stage: int) -> tuple[Move, Weights]:
    """Of the conversion of one value; where it is loaded, of the load, which is where it arrives."""
    rate, owner = space.graph.values[name].rate, owner_of(space.graph, name)
    if deciding_op(space.graph, name) is None:
        lap = lifetimes.leg(lifetimes.readers(name, stage)[0]).lap
        return (home, stage, 0), (0, 0, space.weight(owner, account_of(Rate.MICRO_BATCH, Phase.FORWARD, stage, lap)))
    (phase, lap), (later, other) = (lifetimes.when(name, home, stage, at=at) for at in (home, stage))
    leaves = conversion_account(space.graph, space.pipeline, name, rate, phase, home, lap)
    arrives = conversion_account(space.graph, space.pipeline, name, rate, later, stage, other)
    if home == stage:
        covers = _covers_ns(lifetimes, space, name) if leaves[0] in COVERED else 0
        covered = space.weight(owner, (COVERED[leaves[0]], leaves[1])) if covers else 0
        return (home, stage, covers), (space.weight(owner, leaves), covered, 0)
    moves = message_account(space.pipeline, len(space.stages.placements), rate, phase, home, lap)
    leaving, moving, arriving = (space.weight(owner, one) for one in (leaves, moves, arrives))
    return (home, stage, 0), (leaving, moving, arriving)


def _covers_ns(lifetimes: Lifetimes, space: SearchSpace, name: str) -> int:
    """For how long the conversion of a value on one stage is covered, if one chunk writes and reads it."""
    ends = space.graph.producer.get(name), space.graph.consumers[name][0]
    if not space.pipeline.overlaps or len({one and lifetimes.leg(one) for one in ends}) > 1:
        return 0
    return covers_ns(space.graph, name, space.cost, len(space.stages.placements[0].devices))


def in_parts(took_ns: IntArray, covers: int) -> IntArray:
    """(3, ...): what each weight of a move counts, of what conversions take at home, on the way and away."""
    if not covers:
        return took_ns
    at_home, moving, away = took_ns  # on one stage all of it is at home
    covered = np.minimum(at_home, covers)
    return np.array([at_home - covered, moving + covered, away])


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
