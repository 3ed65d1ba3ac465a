"""Profile: what ops and collectives cost on this machine, measured on all ranks at once.

Ops run on the pieces that a training graph would give them under several splits and micro-batches, so that the sizes
measured are the sizes met. All ranks time the same case at the same moment, for they share caches and memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from executor.collective_profile import SAMPLES, WARM_UPS, CollectiveSample, time_collective
from executor.data.text import VOCABULARY
from executor.runtime.kernels.base import Kernels
from executor.runtime.transport.base import Transport
from strategy.base.errors import RunError
from strategy.cost.calibrate import fitted_kinds
from strategy.cost.cost import op_features
from strategy.cost.measurement import CostKey, Features, Measurement, summarise
from strategy.graph.graph import Graph, Op
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Array, Call, Workspace
from strategy.graph.signature import Signature, op_signatures, piece_specs
from strategy.models import Integers, Model
from strategy.passes.training import Training, training_graph
from strategy.sbp.ragged import Rows, piece_of
from strategy.sbp.tensor import Box, TensorSpec

SIZES_PER_KIND = 6
TRIES = 4
"""How often communication whose bytes seem to take no time is measured anew."""


@dataclass(frozen=True, slots=True)
class OpSample:
    """One op on pieces of one size."""

    features: Features
    op: Op
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    updates: tuple[TensorSpec, ...]


def op_samples(model: Model, global_batch: int, ranks: int) -> list[OpSample]:
    """Cases of every op kind that training uses, over its range of sizes."""
    found: dict[str, dict[Features, OpSample]] = {}
    for count in (1, 2, 4):
        if global_batch % count:
            continue
        graph = training_graph(model, Training(global_batch, count))
        for op in graph.ops:
            if op.layer in (None, 0):
                for mesh in ((1,), (ranks,)):
                    for signature in op_signatures(graph, op, mesh):
                        sample = _sample(graph, op, signature, mesh)
                        found.setdefault(op.kind, {}).setdefault(sample.features, sample)
    return [sample for kind in sorted(found) for sample in _spread(list(found[kind].values()))]


def _sample(graph: Graph, op: Op, signature: Signature, mesh: tuple[int, ...]) -> OpSample:
    return OpSample(
        op_features(graph, op, signature, mesh),
        op,
        piece_specs(graph.specs(op.inputs), signature.inputs, mesh),
        piece_specs(graph.specs(op.outputs), signature.outputs, mesh),
        piece_specs(graph.specs(op.updates), signature.updates, mesh),
    )


def _spread(samples: Sequence[OpSample]) -> list[OpSample]:
    """A few samples from the smallest to the largest."""
    ordered = sorted(samples, key=lambda sample: (sample.features.flop, sample.features.nbytes))
    picks = sorted({round(i * (len(ordered) - 1) / (SIZES_PER_KIND - 1)) for i in range(SIZES_PER_KIND)})
    return [ordered[pick] for pick in picks]


def time_op(sample: OpSample, kernels: Kernels, *, vocabulary: int) -> list[float]:
    """Seconds of one act, several times."""
    definition = op_definition(sample.op.kind)
    rng = np.random.default_rng(0)
    arrays = [_random(kernels, spec, rng, vocabulary) for spec in (*sample.inputs, *sample.outputs, *sample.updates)]
    first, second = len(sample.inputs), len(sample.inputs) + len(sample.outputs)
    call = Call(
        xp=kernels.xp,
        attrs=sample.op.attrs,
        inputs=tuple(arrays[:first]),
        outputs=tuple(arrays[first:second]),
        updates=tuple(arrays[second:]),
        input_boxes=tuple(_box(spec) for spec in sample.inputs),
        output_boxes=tuple(_box(spec) for spec in sample.outputs),
        workspace=Workspace(kernels.xp),
        first_of_piece=False,
    )

    bound = kernels.bind(definition, call)

    def act() -> None:
        bound.run()
        kernels.wait()

    return _seconds(act)


def _box(spec: TensorSpec) -> Box:
    return tuple((0, size) for size in spec.shape)


def _random(kernels: Kernels, spec: TensorSpec, rng: np.random.Generator, vocabulary: int) -> Array:
    """An operand; of a ragged one as many rows as are expected, the same ones for all operands of a shape."""
    xp = kernels.xp
    if spec.ragged is not None:
        rows: Rows = piece_of(xp, spec, _box(spec))
        held = np.random.default_rng(0).permutation(math.prod(spec.shape[:-1]))[: spec.expected_rows]
        cells = np.ravel_multi_index(np.unravel_index(np.sort(held), spec.shape[:-1]), spec.ragged.dims)
        rows.hold(xp.asarray(cells))[...] = xp.asarray(rng.uniform(0.1, 2.0, spec.expected.shape))
        return rows
    if not spec.dtype.is_float:
        return xp.asarray(rng.integers(0, vocabulary, spec.shape).astype(spec.dtype.numpy))
    return xp.asarray(rng.uniform(0.1, 2.0, spec.shape).astype(spec.dtype.numpy))


def _seconds(act: Callable[[], object]) -> list[float]:
    for _ in range(WARM_UPS):
        act()
    seconds = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start)
    return seconds


def profile(
    model: Model,
    global_batch: int,
    transport: Transport,
    kernels: Kernels,
    *,
    collectives: Sequence[CollectiveSample],
    mean: Callable[[float], float],
    longest: Callable[[Sequence[float]], list[float]],
    progress: Callable[[str], None] = lambda line: None,
) -> list[Measurement]:
    """Measure ops and collectives on all ranks together.

    All ranks agree on what they return: the `mean` of their times of an op; of communication the `longest` of every
    repeat, as ranks that share a link may be served one after another, and a sender may be done before what it sent is.

    Raises:
        RunError: as `profile_collectives`.
    """
    rows = []
    smallest = min((s.below for s in model.batch.values() if isinstance(s, Integers)), default=VOCABULARY)
    for sample in op_samples(model, global_batch, transport.size):
        progress(f"{sample.features.kind} {sample.features.nbytes} bytes")
        transport.barrier()
        mine = summarise(sample.features, time_op(sample, kernels, vocabulary=smallest), "profile")
        rows.append(replace(mine, seconds=mean(mine.seconds)))
    if transport.size > 1:
        rows += profile_collectives(collectives, transport, longest=longest, progress=progress)
    return rows


def profile_collectives(
    samples: Sequence[CollectiveSample],
    transport: Transport,
    *,
    longest: Callable[[Sequence[float]], list[float]],
    progress: Callable[[str], None],
) -> list[Measurement]:
    """Measure communication: every kind and level at several sizes, each with a fitted rate of bytes.

    Where other work takes the cores, small messages may take as long as large ones, so that bytes seem to be free. Such
    a kind is measured anew, and the shorter time of a size counts: load only ever adds to it.

    Raises:
        RunError: bytes are still free after some tries.
    """

    def measured(sample: CollectiveSample) -> Measurement:
        progress(f"{sample.features.kind} {sample.features.nbytes} bytes")
        return summarise(sample.features, longest(time_collective(sample, transport)), "profile")

    rows, tries = [measured(sample) for sample in samples], 0
    while free := [key for key, found in fitted_kinds(rows).items() if not found.coefficients.s_per_byte]:
        if tries == TRIES:
            raise RunError(_free_bytes(free[0], rows))
        tries += 1
        rows = [
            min(row, measured(sample), key=lambda one: one.seconds) if row.features.key in free else row
            for row, sample in zip(rows, samples, strict=True)
        ]
    return rows


def _free_bytes(key: CostKey, rows: Sequence[Measurement]) -> str:
    """What to say of communication whose bytes take no time."""
    times = ", ".join(f"{row.features.nbytes} bytes in {row.seconds:.2g} s" for row in rows if row.features.key == key)
    hint = "other work takes the cores; profile anew when this machine is quiet"
    return f"profile: the time of {key} does not grow with its bytes ({times}): {hint}"
