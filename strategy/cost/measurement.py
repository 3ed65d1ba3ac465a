"""Measurement: the one row schema in which microbenchmarks and timelines report what an act took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Features:
    """What the cost model knows of an act: its kind and its size.

    `kind` is an op kind (`matmul`) or a communication kind (`all_reduce`); `hops` is the number of other ranks in the
    group of a communication (0 for computation); `level` is `intra` or `inter`, the slowest link that it crosses.
    A collective on two levels is its `parts`, one after another: bytes and hops are then theirs together. `half` is the
    dtype of an op on 16-bit floats; its price is a matter of its own. `product` is the shape of one that multiplies
    matrices: rows, columns, depth, how many at once. `every_pair` is of attention without a causal mask.
    """

    kind: str
    flop: int
    nbytes: int
    hops: int = 0
    level: str = ""
    parts: tuple[Features, ...] = ()
    half: str = ""
    product: tuple[int, int, int, int] | None = None
    every_pair: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of an act of one size, from `samples` acts measured in `source` (a profile or a run)."""

    features: Features
    seconds: float
    samples: int
    source: str
