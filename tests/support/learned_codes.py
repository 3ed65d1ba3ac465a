"""Training in low precision on one device, step after step, beside what it departs from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import ml_dtypes
import numpy as np

from executor.data.synthetic import BatchLoader
from executor.data.text import Corpus
from strategy.graph.graph import Graph, Role
from strategy.graph.ops import quantize
from strategy.graph.ops.base import Array as AnyArray
from strategy.graph.ops.base import ArrayModule
from strategy.models.base import Model
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import REPORT, Training, training_graph
from strategy.program.program import LoadTask
from strategy.sbp.tensor import LARGEST_CODE, DType
from tests.support.reference import Array, run_graph, start_variables

Watch = Callable[[Graph, Mapping[str, Array]], None]


def losses(model: Model, training: Training, corpus: Corpus, steps: int, watch: Watch | None = None) -> Array:
    """The mean loss of every step [steps], from parameters and batches that do not depend on the precision.

    `watch` is shown the graph and all values after every micro-batch.
    """
    graph = training_graph(model, training)
    plain = training_graph(model, replace(training, precision=Precision.FULL))
    start = start_variables(plain, np.random.default_rng(training.seed))
    start |= {
        v.name: np.zeros(v.spec.shape, v.spec.dtype) for v in graph.with_role(Role.VARIABLE) if v.name not in start
    }
    found = []

    def seen(values: Mapping[str, Array]) -> None:
        if watch is not None:
            watch(graph, values)

    for step in range(steps):
        batches = list(_batches(graph, model, training, corpus, step))
        report = run_graph(graph, batches, start, step=step, seen=seen)[REPORT]
        found.append(float(report[0] / report[1]))
    return np.array(found)


def beside_single_precision(
    model: Model, training: Training, corpus: Corpus, steps: int
) -> tuple[Array, Array, list[float]]:
    """(losses, those in single precision, all codes on the way that are no figure of their dtype)."""
    strange: list[float] = []
    seen: set[DType] = set()

    def watch(graph: Graph, values: Mapping[str, Array]) -> None:
        for dtype, codes in codes_of(graph, values):
            seen.add(dtype)
            strange.extend(codes[~np.isin(codes, sorted(figures_of(dtype)))].tolist())

    plain = replace(training, precision=Precision.FULL)
    found, expected = (losses(model, one, corpus, steps, watch) for one in (training, plain))
    assert seen
    return found, expected, strange


def _batches(graph: Graph, model: Model, training: Training, corpus: Corpus, step: int) -> Iterator[dict[str, Array]]:
    specs = {value.name: value.spec for value in graph.with_role(Role.INPUT)}
    shapes, count = {name: spec.shape for name, spec in specs.items()}, training.num_micro_batches
    load = BatchLoader(model.batch, shapes, corpus, seed=training.seed, num_micro_batches=count)
    task = LoadTask(tuple(specs), tuple(tuple((0, size) for size in shape) for shape in shapes.values()))
    for number in range(count):
        arrays = {name: np.empty(spec.shape, spec.dtype) for name, spec in specs.items()}
        load(task, step * count + number, list(arrays.values()))
        yield arrays


@contextmanager
def unit_scales() -> Iterator[None]:
    """Codes are the tensors themselves, rounded: what 8 bits without scales would be."""

    def one(xp: ArrayModule, amax: AnyArray, largest: float) -> AnyArray:
        return xp.ones_like(amax)

    with mock.patch.object(quantize, "scale_of", one):
        yield


def figures_of(dtype: DType) -> frozenset[float]:
    """All finite figures of a dtype, by its digits: sign, exponent, fraction (arXiv:2209.05433, table 1).

    The last exponent of E5M2 has none, that of E4M3 all but one, and E2M1 has figures alone.
    """
    exponents, fractions = {
        DType.FLOAT8_E4M3: (4, 3),
        DType.FLOAT8_E5M2: (5, 2),
        DType.FLOAT4_E2M1_X2: (2, 1),
    }[dtype]
    bias, found = 2 ** (exponents - 1) - 1, {0.0}
    for exponent in range(2**exponents):
        for fraction in range(2**fractions):
            part = fraction / 2**fractions
            size = (1 + part) * 2.0 ** (exponent - bias) if exponent else part * 2.0 ** (1 - bias)
            last = exponent == 2**exponents - 1
            is_figure = not last or (dtype is DType.FLOAT8_E4M3 and fraction < 2**fractions - 1)
            is_figure |= dtype is DType.FLOAT4_E2M1_X2
            found.update({size, -size} if is_figure else ())
    return frozenset(found)


def codes_of(graph: Graph, values: Mapping[str, Array]) -> Iterator[tuple[DType, Array]]:
    """All codes among the values of a step, as float32; scales of blocks are none."""
    for value in graph.values.values():
        if value.spec.dtype in LARGEST_CODE and value.name in values:
            yield value.spec.dtype, decoded(value.spec.dtype, values[value.name])


def decoded(dtype: DType, codes: Array) -> Array:
    """Codes or scales as float32; bytes of two codes by the package ml_dtypes, the first in the lower half."""
    if dtype is DType.FLOAT4_E2M1_X2:
        assert codes.dtype == np.uint8
        pairs = np.stack([codes & 15, codes >> 4], axis=-1).view(ml_dtypes.float4_e2m1fn)
        return pairs.reshape(*codes.shape[:-1], -1).astype(np.float32)
    assert codes.dtype == np.dtype(getattr(ml_dtypes, str(dtype), str(dtype)))
    return codes.astype(np.float32)
