"""Graphs with mistakes: every op whose operands do not compose, or mix dtypes, is reported by name, all in one error.

A graph is traced from some sound ops and up to six wrong ones, each of which reads inputs of its own. A mistake is one
dim too long or short, one dim too many or few, or another dtype, where the kind of op allows no such thing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from strategy.base.errors import GraphError
from strategy.graph.graph import Attrs
from strategy.nn.tracer import Tracer
from strategy.sbp.tensor import DType, Shape, TensorSpec
from tests.campaigns.outcome import Outcome

MOST_WRONG = 6
MOST_SOUND = 6
DTYPES = (DType.FLOAT64, DType.BFLOAT16, DType.FLOAT16, DType.INT32)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of op on operands that compose; `tied` are the (operand, dim) that others fix, `ranks` fixed ranks."""

    shapes: tuple[Shape, ...]
    tied: tuple[tuple[int, int], ...]
    ranks: tuple[int, ...]
    attrs: Attrs = field(default_factory=dict)
    labels: tuple[str, ...] = ()


_PAIR = Kind(((4, 6), (4, 6)), ((0, 0), (0, 1), (1, 0), (1, 1)), ())
KINDS: Mapping[str, Kind] = {
    "matmul": Kind(((4, 6), (6, 5)), ((0, 1), (1, 0)), (1,)),
    "batch_matmul": Kind(
        ((3, 4, 6), (3, 6, 5)),
        ((0, 2), (1, 1), (0, 0), (1, 0)),
        (0, 1),
        {"transpose_a": 0, "transpose_b": 0},
    ),
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum"), _PAIR),
    "layer_norm": Kind(((4, 6), (6,), (6,)), ((0, 1), (1, 0), (2, 0)), (1, 2), labels=("mean", "rstd")),
    "rms_norm": Kind(((4, 6), (6,)), ((0, 1), (1, 0)), (1,), labels=("rstd",)),
    "attention": Kind(
        ((2, 6, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8)),
        ((0, 0), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 1), (2, 2)),  # values may be of another width
        (0, 1, 2),
        {"causal": 1, "group": 2},
        ("lse",),
    ),
    "concat": Kind(((4, 6), (4, 3), (4, 2)), ((0, 0), (1, 0), (2, 0)), (0, 1, 2), {"axis": 1}),
}
QUOTAS = {**dict.fromkeys(KINDS, 0.1), "dim": 0.3, "rank": 0.3, "dtype": 0.3, "several": 0.5}


def run(cases: int, seed: int) -> Outcome:
    """Trace `cases` graphs."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        exercised: list[str] = []
        outcome.add(f"graph {number}", list(check(random.Random(number), exercised)), exercised)
    return outcome


def check(rng: random.Random, exercised: list[str]) -> Iterator[str]:
    """What the error of a graph with mistakes does not say, or says of sound ops."""
    ops = [(f"wrong{i}", True) for i in range(rng.randint(1, MOST_WRONG))]
    ops += [(f"sound{i}", False) for i in range(rng.randint(0, MOST_SOUND))]
    rng.shuffle(ops)
    exercised += ["several"] * (sum(wrong for _, wrong in ops) > 1)
    tracer, mistakes = Tracer(), dict[str, str]()
    for name, wrong in ops:
        kind = rng.choice(sorted(KINDS))
        specs = [TensorSpec(shape) for shape in KINDS[kind].shapes]
        if wrong:
            what = rng.choice(("dim", "rank", "dtype") if KINDS[kind].ranks else ("dim", "dtype"))
            specs = _mistaken(specs, KINDS[kind], what, rng)
            mistakes[name] = f"{kind} of {specs}"
            exercised += [kind, what]
        inputs = [tracer.input(f"{name}.in{i}", spec) for i, spec in enumerate(specs)]
        tracer.apply(name, kind, inputs, KINDS[kind].attrs, KINDS[kind].labels)
    try:
        tracer.check()
    except GraphError as error:
        told = error.problems
    else:
        told = ()
    for name, mistake in mistakes.items():
        if sum(problem.startswith(f"op {name} (") for problem in told) != 1:
            yield f"{name}, {mistake}, is not reported once among {told}"
    if len(told) != len(mistakes):
        yield f"{len(told)} problems of {len(mistakes)} mistakes: {told}"


def _mistaken(specs: list[TensorSpec], kind: Kind, what: str, rng: random.Random) -> list[TensorSpec]:
    """The operands with one mistake."""
    if what == "dtype":
        position = rng.randrange(len(specs))
        changed = replace(specs[position], dtype=rng.choice(DTYPES))
    elif what == "rank":
        position = rng.choice(kind.ranks)
        shape = specs[position].shape
        changed = replace(specs[position], shape=(*shape, 3) if rng.random() < 0.5 else shape[:-1])
    else:
        position, dim = rng.choice(kind.tied)
        shape = list(specs[position].shape)
        shape[dim] += rng.choice((-1, 1, 1000))
        changed = replace(specs[position], shape=tuple(shape))
    return [changed if i == position else spec for i, spec in enumerate(specs)]
