"""Measurement: the one row schema in which microbenchmarks and timelines report what an act took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from strategy.base.errors import InputError
from strategy.sbp.placement import Space

LEAST_SAMPLES = 5
"""Fewer samples of one size are no measurement: one preempted act in three moves their median."""


@dataclass(frozen=True, slots=True, order=True)
class CostKey:
    """Which acts share constants: those of a kind, of a dtype of 16 bits, 8 or wider ones, of a level, of a place.

    `level` is that of a communication, `half` the dtype of an op on 16-bit floats or codes; both are empty of others.
    """

    kind: str
    half: str = ""
    level: str = ""
    space: Space = Space.DEVICE

    def __str__(self) -> str:
        """As people read it: `adamw@host`, `matmul:bfloat16`, `all_reduce@inter`."""
        where = "@host" if self.space is Space.HOST else ""
        return f"{self.kind}{where}{self.half and f':{self.half}'}{self.level and f'@{self.level}'}"


@dataclass(frozen=True, slots=True)
class Features:
    """What the cost model knows of an act: its kind and its size.

    `kind` is an op kind (`matmul`) or a communication kind (`all_reduce`); `hops` is the number of other ranks in the
    group of a communication (0 for computation); `level` is `intra` or `inter`, the slowest link that it crosses.
    A collective on two levels is its `parts`, one after another: bytes and hops are then theirs together. `half` is the
    dtype of an op on 16-bit floats; its price is a matter of its own. `product` is the shape of one that multiplies
    matrices: rows, columns, depth, how many at once; of grouped ones rows (or depth) of each group. `attention_shape`
    is that of fused attention: sequences, queries, heads, key heads, head dim; keys follow from the FLOPs. `every_pair`
    is of attention without a causal mask. `space` is
    where it is computed: on the device or on its host. `groups` are those of the nodes that take part, in a cluster of
    several types: the slowest of them counts; where nobody says who takes part, the fastest of all. `near` is how many
    of those other ranks are on a rank's own node, of a collective between nodes in which all send each other as much.
    """

    kind: str
    flop: int
    nbytes: int
    hops: int = 0
    level: str = ""
    parts: tuple[Features, ...] = ()
    half: str = ""
    product: tuple[int, int, int, int] | None = None
    attention_shape: tuple[int, int, int, int, int] | None = None
    every_pair: bool = False
    space: Space = Space.DEVICE
    groups: tuple[int, ...] = ()
    near: int = 0

    @property
    def crossing(self) -> float:
        """The share of its bytes that passes the link of its level."""
        return (self.hops - self.near) / self.hops if self.near else 1.0

    @property
    def key(self) -> CostKey:
        """Which constants price it."""
        return CostKey(self.kind, self.half, self.level, self.space)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of an act of one size, from `samples` acts measured in `source` (a profile or a run)."""

    features: Features
    seconds: float
    samples: int
    source: str


def summarise(features: Features, seconds: Sequence[float], source: str) -> Measurement:
    """The row of the samples of one size: their median, which a preempted act does not move.

    Raises:
        InputError: fewer samples than `LEAST_SAMPLES`.
    """
    check_samples(len(seconds), source)
    return Measurement(features, median(seconds), len(seconds), source)


def check_samples(count: int, source: str) -> None:
    """Refuse rows of too few samples.

    Raises:
        InputError: names the source.
    """
    if count < LEAST_SAMPLES:
        hint = "measure longer"
        raise InputError("too few samples", where=source, got=count, expected=f"at least {LEAST_SAMPLES}", hint=hint)
