"""Search space: one graph on one pipeline of equal meshes, and the signatures that each of its ops may have.

What a choice costs is the length of some paths through the schedule, all together (`critical_path`): linear, and, over
the number of paths, no more than the objective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from strategy.cost.cost import CostModel
from strategy.graph.graph import Graph, Op
from strategy.graph.signature import Signature, op_signatures
from strategy.layout.arrangement import Pipeline
from strategy.layout.convert import Converter
from strategy.layout.critical_path import Paths, even_paths
from strategy.layout.layout import Stages
from strategy.layout.objective import Account

Keep = Callable[[Op, Signature], bool]
"""Whether a signature of an op may be chosen: how pins and rules restrict the search."""


def free(op: Op, signature: Signature) -> bool:
    """Keep every signature."""
    return True


def all_of(rules: Mapping[str, Keep]) -> Keep:
    """Keep what every rule keeps."""
    return lambda op, signature: all(rule(op, signature) for rule in rules.values())


@dataclass(frozen=True, slots=True)
class Kept:
    """A value is kept for a reader.

    Attributes:
        price: of a byte.
        reader: an op that reads it later.
        as_read: whether it is kept in the layout that the reader wants; else in that or where it lives, in whichever is
            smaller.
    """

    price: float
    reader: str
    as_read: bool


@dataclass
class SearchSpace:
    """One graph on one pipeline of equal meshes; the options of ops are remembered."""

    graph: Graph
    stages: Stages
    pipeline: Pipeline
    cost: CostModel
    converter: Converter
    keep: Keep
    along: Paths | None = None
    """The paths whose length a choice costs; else those that pass all stages about alike."""
    owned: bool = False
    """Whether tensors may be with one rank of the data axis."""
    folded: bool = True
    """Whether repeated layers share their decisions; else every op has its own, which costs time and may gain some."""
    rule_based: Keep | None = None
    """Which signatures a person would choose from: where a solver begins."""
    weigh: Callable[[Op, Account], int] | None = None
    """What a nanosecond counts of an op's acts, and of conversions for it, by their account; else the paths say."""
    home_prices: Mapping[str, float] = field(default_factory=dict)
    """Value -> what a byte of it counts that a rank holds where it lives, where that is anything."""
    copy_prices: Mapping[str, float] = field(default_factory=dict)
    """Value -> what a byte of each of its copies counts, where that is anything."""
    kept_prices: Mapping[str, Kept] = field(default_factory=dict)
    """Value -> what a byte counts of what is kept of it for a reader."""
    known: dict[str, tuple[Signature, ...]] = field(default_factory=dict, compare=False)
    """The options of ops by their names, found once for all weights."""

    def options(self, op: Op) -> tuple[Signature, ...]:
        """The signatures that an op may have."""
        if op.name not in self.known:
            legal = op_signatures(self.graph, op, self.mesh, owned=self.owned)
            self.known[op.name] = tuple(signature for signature in legal if self.keep(op, signature))
        return self.known[op.name]

    @property
    def mesh(self) -> tuple[int, ...]:
        """The mesh of every stage."""
        return self.stages.placements[0].mesh

    @cached_property
    def paths(self) -> Paths:
        """The paths whose length a choice costs."""
        pipeline, count = self.pipeline, len(self.stages.placements)
        if self.along is not None:
            return self.along
        return even_paths(pipeline.schedule, count, pipeline.laps, pipeline.num_micro_batches, pipeline.overlaps)

    def weight(self, op: Op, account: Account) -> int:
        """How often the paths pass an act of an op, or of a conversion for it: what a nanosecond of it costs."""
        if self.weigh is not None:
            return self.weigh(op, account)
        name, place = account
        return int(getattr(self.paths.counts, name)[place])
