"""Search space: one graph on one pipeline of equal meshes, and the signatures that each of its ops may have.

What a choice costs is the length of some paths through the schedule, all together (`critical_path`): linear, and, over
the number of paths, no more than the objective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from strategy.cost.cost import CostModel
from strategy.graph.graph import Graph, Op, act_rate
from strategy.graph.signature import Listings, SbpFilter, Signature
from strategy.layout.arrangement import Pipeline, act_kind
from strategy.layout.convert import Converter
from strategy.layout.critical_path import even_paths
from strategy.layout.layout import Stages
from strategy.layout.objective import Account, op_account, overlap_of
from strategy.layout.step_times import MeanPath, StepTimes, mean_path, no_times

Keep = Callable[[Op, Signature], bool]
"""Whether a signature of an op may be chosen: how pins and rules restrict the search."""


def free(op: Op, signature: Signature) -> bool:
    """Keep every signature."""
    return True


def all_of(rules: Mapping[str, Keep]) -> Keep:
    """Keep what every rule keeps."""
    if len(rules) < 2:
        return next(iter(rules.values()), free)
    return lambda op, signature: all(rule(op, signature) for rule in rules.values())


Weight = int | npt.NDArray[np.int64]
"""What something counts: a number, or one for every weight that is given later, (weights,)."""


class Keeping(StrEnum):
    """In which layouts a value is kept; but for the first of these, the first of its readers alone is looked at."""

    AS_READ = "every layout that a reader wants"
    SMALLER = "where it lives or as it is read, whichever is smaller"
    GATHERED = "as it is read, where a collective brings it there"
    EXCHANGED = "where it lives, where a collective takes it from there"
    BOTH = "as two readers read it, where they read it alike; else where it may live in least"


@dataclass(frozen=True, slots=True)
class Kept:
    """A value is kept for ops that read it later.

    Attributes:
        weight: of a byte.
        readers: ops that read it later.
        keeping: in which layouts.
        first_weight: of a byte of layouts that the first readers alone want.
        first: ops that read it earlier, and for whom it is kept, too.
    """

    weight: Weight
    readers: tuple[str, ...]
    keeping: Keeping = Keeping.AS_READ
    first_weight: Weight = 0
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Handed:
    """A value is handed on to another stage.

    Attributes:
        readers: ops that read it there.
        source, target: stages of the converters.
        ways: of every pair of stages that it is counted between, the weight of a nanosecond that this takes, and the
            converter of a pipeline of these two.
    """

    readers: tuple[str, ...]
    source: int
    target: int
    ways: tuple[tuple[Weight, Converter], ...]


@dataclass
class SearchSpace:
    """One graph on one pipeline of equal meshes; the options of ops are remembered."""

    graph: Graph
    stages: Stages
    pipeline: Pipeline
    cost: CostModel
    converter: Converter
    keep: Keep
    """Which signatures ZeRO and pins leave; what an op is `allows` says, with the rules of the axes."""
    along: MeanPath | None = None
    """The paths whose length a choice costs; else those that pass all stages about alike."""
    owned: bool = False
    """Whether tensors may be with one rank of the data axis."""
    folded: bool = True
    """Whether repeated layers share their decisions; else every op has its own, which costs time and may gain some."""
    rule_based: Keep | None = None
    """Which signatures a person would choose from: where a solver begins."""
    weigh: Callable[[Op, Account], Weight] | None = None
    """What a nanosecond counts of an op's acts, and of conversions for it, by their account; else the paths say."""
    home_weights: Mapping[str, Weight] = field(default_factory=dict)
    """Value -> what a byte of it counts that a rank holds where it lives, where that is anything."""
    kept: Mapping[str, Kept] = field(default_factory=dict)
    """Value -> for whom it is kept, where that counts."""
    handed: Mapping[str, Handed] = field(default_factory=dict)
    """Value -> to whom it is handed on, where that counts."""
    wanted: Callable[[Op], SbpFilter] | None = None
    """What is kept at most, axis by axis: what is not is never listed."""
    known: dict[str, tuple[Signature, ...]] = field(default_factory=dict, compare=False)
    """The options of ops by their names, found once for all weights."""

    def options(self, op: Op) -> tuple[Signature, ...]:
        """The signatures that an op may have."""
        if op.name not in self.known:
            wanted = None if self.wanted is None else self.wanted(op)
            legal = self.listings.of(op, wanted)
            kept = legal if self.keep is free else tuple(signature for signature in legal if self.keep(op, signature))
            self.known[op.name] = kept
        return self.known[op.name]

    def allows(self, op: Op, signature: Signature) -> bool:
        """Whether an op may have a signature, be it listed or not."""
        wanted = None if self.wanted is None else self.wanted(op)
        if wanted is not None:
            places = ((axis, at, sbp) for at, layout in enumerate(signature.layouts) for axis, sbp in enumerate(layout))
            if not all(wanted(*place) for place in places):
                return False
        return self.keep(op, signature)

    @cached_property
    def listings(self) -> Listings:
        """The legal signatures of ops."""
        return Listings(self.graph, self.mesh, self.owned)

    @property
    def mesh(self) -> tuple[int, ...]:
        """The mesh of every stage."""
        return self.stages.placements[0].mesh

    @cached_property
    def paths(self) -> MeanPath:
        """The paths whose length a choice costs."""
        pipeline, count = self.pipeline, len(self.stages.placements)
        if self.along is not None:
            return self.along
        even = even_paths(pipeline.schedule, count, pipeline.laps, pipeline.num_micro_batches, pipeline.overlaps)
        nothing = StepTimes(**no_times(count, pipeline.laps), overlap=overlap_of(pipeline, self.cost))
        return mean_path(pipeline.schedule, pipeline.num_micro_batches, nothing, even)

    def weight(self, op: Op, account: Account) -> Weight:
        """How often the paths pass an act of an op, or of a conversion for it: what a nanosecond of it costs."""
        if self.weigh is not None:
            return self.weigh(op, account)
        name, place = account
        return int(getattr(self.paths.counts, name)[place])

    def act_weight(self, op: Op) -> Weight:
        """The same of an act of an op."""
        stage, lap = self.stages.stage_of[op.name], self.stages.lap_of(op.name)
        rate = act_rate(self.graph, op)
        return self.weight(op, op_account(self.pipeline, act_kind(op), rate, op.phase, stage, lap))
