"""Search space: one graph on one pipeline of equal meshes, and the signatures that each of its ops may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from strategy.cost.cost import CostModel
from strategy.graph.graph import Graph, Op
from strategy.graph.signature import Signature, op_signatures
from strategy.layout.arrangement import Pipeline
from strategy.layout.convert import Converter
from strategy.layout.layout import Stages
from strategy.layout.objective import rate_weight
from strategy.sbp.tensor import Rate

Keep = Callable[[Op, Signature], bool]
"""Whether a signature of an op may be chosen: how pins and rules restrict the search."""


def free(op: Op, signature: Signature) -> bool:
    """Keep every signature."""
    return True


def all_of(rules: Mapping[str, Keep]) -> Keep:
    """Keep what every rule keeps."""
    return lambda op, signature: all(rule(op, signature) for rule in rules.values())


@dataclass(slots=True)
class SearchSpace:
    """One graph on one pipeline of equal meshes; `weights` say how much each stage's time counts.

    The options of ops are remembered.
    """

    graph: Graph
    stages: Stages
    pipeline: Pipeline
    cost: CostModel
    converter: Converter
    weights: tuple[int, ...]
    keep: Keep
    owned: bool = False
    """Whether tensors may be with one rank of the data axis."""
    folded: bool = True
    """Whether repeated layers share their decisions; else every op has its own, which costs time and may gain some."""
    rule_based: Keep | None = None
    """Which signatures a person would choose from: where a solver begins."""
    stands_for: Mapping[str, int] = field(default_factory=dict)
    """Op -> how many alike ops of a deeper model it stands for, where that is not one."""
    rate_weights: Mapping[Rate, int] = field(default_factory=dict)
    """What an act of a rate counts, where that is not how often a step of the pipeline does it."""
    home_prices: Mapping[str, float] = field(default_factory=dict)
    """Value -> what a byte of it counts that a rank holds where it lives, where that is anything."""
    copy_prices: Mapping[str, float] = field(default_factory=dict)
    """Value -> what a byte of each of its copies counts, where that is anything."""
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

    def times(self, rate: Rate) -> int:
        """How often a step acts at a rate, or what that counts."""
        if rate in self.rate_weights:
            return self.rate_weights[rate]
        return rate_weight(rate, self.pipeline, len(self.stages.placements))

    def count(self, op: str) -> int:
        """How many alike ops an op stands for."""
        return self.stands_for.get(op, 1)

    def weight(self, stage: int, rate: Rate) -> int:
        """What one act of a stage counts in the weighted objective."""
        return self.weights[stage] * self.times(rate)
