"""Parts of acceptance on one device: errors of every kernel, product and attention, and their times over floors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from executor.gpu_acceptance.bench import SMALL, Bench
from executor.gpu_acceptance.machine import copy_bytes_per_s
from executor.gpu_acceptance.outcome import Figures, PartFailed
from executor.gpu_acceptance.samples import (
    TOLERANCES,
    attention_samples,
    call_on,
    drawn,
    error_of,
    kernel_samples,
    product_samples,
    samples_of_codes,
)
from executor.runtime.kernels.gpu.attention import AttentionAct
from executor.runtime.kernels.gpu.products import Epilogue, MatrixProduct
from executor.runtime.kernels.gpu.program import ELEMENTS
from executor.runtime.kernels.gpu.table import work_of
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Example, Workspace
from strategy.sbp.tensor import DType

_ALGORITHMS = 8
"""Of the library's for one product, of which the first is to be nearly the best."""
WANTED_OF_BEST, WANTED_OF_COPY = 0.9, 0.8
"""Shares of the library's own best, and of the rate of a copy, that are asked for at full size."""

Rows = dict[str, dict[str, Any]]


def kernels(bench: Bench) -> Figures:
    """Our kernels in every element type: the error against double precision, and the time over that of a copy."""
    rate = copy_bytes_per_s(bench)
    rows: Rows = {}
    for element in ELEMENTS:
        for sample in kernel_samples(SMALL, element):
            error = error_of(bench, sample.kind, sample.example)
            rows[f"{sample.name} {element}"] = {"error": error, "most": _most(sample.example)}
    for sample in kernel_samples(bench.sizes, DType.BFLOAT16):
        call = call_on(bench, sample.kind, sample.example, drawn(sample.example, seed=2))
        seconds = bench.seconds(_act(bench, sample.kind, call))
        nbytes = sum(array.nbytes for array in (*call.inputs, *call.outputs, *call.updates, *call.updates))
        share = nbytes / rate / seconds
        rows[f"{sample.name} bfloat16"] |= {"seconds": seconds, "of_copy": share, "fast": share >= WANTED_OF_COPY}
    return judged({"copy_bytes_per_s": rate, "acts": rows}, rows)


def _most(example: Example) -> float:
    """The tolerance of the narrowest operand."""
    return max(TOLERANCES[spec.dtype] for spec in (*example.inputs, *example.updates) if spec.dtype.is_float)


def _act(bench: Bench, kind: str, call: Call) -> Callable[[], None]:
    bound = bench.acts.bind(op_definition(kind), call)

    def issue() -> None:
        bound.run()
        bench.acts.flush()

    return issue


def products(bench: Bench) -> Figures:
    """Products of every element type, with what may follow them, and of codes; the first algorithm beside the best."""
    rows: Rows = {}
    for element in ELEMENTS:
        for kind, example in product_samples(SMALL, element).items():
            rows[f"{kind} {element}"] = {"error": error_of(bench, kind, example), "most": TOLERANCES[element]}
        for kind, example in product_samples(bench.sizes, element).items():
            call = call_on(bench, kind, example, drawn(example, seed=2))
            rows[f"{kind} {element}"] |= _beside_the_best(bench, kind, call)
    for epilogue in Epilogue:
        rows[f"product {epilogue}"] = {"error": _epilogue_error(bench, epilogue), "most": TOLERANCES[DType.BFLOAT16]}
    for kind, example in samples_of_codes(SMALL, DType.BFLOAT16).items():
        rows[kind] = {"error": error_of(bench, kind, example), "most": TOLERANCES[DType.BFLOAT16]}
    for kind, example in samples_of_codes(bench.sizes, DType.BFLOAT16).items():
        call = call_on(bench, kind, example, drawn(example, seed=2))
        rows[kind] |= _beside_the_best(bench, kind, call)
    return judged({"products": rows}, rows)


def _beside_the_best(bench: Bench, kind: str, call: Call) -> dict[str, Any]:
    (product,) = (one for one in work_of(kind, call) or () if isinstance(one, MatrixProduct))
    plans = bench.products.plans(product, _ALGORITHMS)
    times = [bench.seconds(partial(bench.products.bind(product, call.workspace, plan), bench.stream)) for plan in plans]
    share = min(times) / times[0]
    return {
        "seconds": times[0],
        "flop_per_s": product.flop / times[0],
        "of_best": share,
        "algorithms": len(times),
        "fast": share >= WANTED_OF_BEST,
    }


def _epilogue_error(bench: Bench, epilogue: Epilogue) -> float:
    xp, (m, n, k), rng = bench.xp, (32, 64, 48), np.random.default_rng(3)
    shapes = {"a": (m, k), "b": (k, n), "bias": (n,), "aux": (m, n)}
    host = {name: rng.standard_normal(shape).astype(DType.BFLOAT16.numpy) for name, shape in shapes.items()}
    held = {name: xp.asarray(array) for name, array in host.items()}
    out = xp.empty((m, n), DType.BFLOAT16.numpy)
    bias = held["bias"] if epilogue.has_bias else None
    aux = held["aux"] if epilogue.has_aux else None
    product = MatrixProduct(held["a"], held["b"], out, epilogue=epilogue, bias=bias, aux=aux)
    bench.products.bind(product, Workspace(xp))(bench.stream)
    a, b, given, before = (host[name].astype(np.float64) for name in shapes)
    right = a @ b
    if epilogue in (Epilogue.BIAS, Epilogue.GELU_OF_BIAS):
        right = right + given
    if epilogue is Epilogue.GELU_OF_BIAS:
        right = _gelu(right)
    if epilogue in (Epilogue.GELU_SLOPE, Epilogue.GELU_SLOPE_AND_SUM):
        right = right * (_gelu(before + 1e-6) - _gelu(before - 1e-6)) / 2e-6
    sums = {Epilogue.GELU_SLOPE_AND_SUM: right.sum(axis=0), Epilogue.SUM_OF_B: b.sum(axis=0)}
    found = [(out, right)] + ([(held["bias"], sums[epilogue])] if epilogue in sums else [])
    return max(_error(one.get(), good) for one, good in found)


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _error(found: Any, right: Any) -> float:
    """The largest error over the largest figure."""
    worst = float(np.abs(found.astype(np.float64) - right).max() / np.abs(right).max())
    return worst if math.isfinite(worst) else math.inf


def attention(bench: Bench) -> Figures:
    """Forward and backward: the error of what the library does, its FLOPs in a second; and what it refuses."""
    rows: Rows = {}
    for element in (one for one in ELEMENTS if one.is_half):
        for kind, example in attention_samples(SMALL, element).items():
            rows[f"{kind} {element}"] = {"error": error_of(bench, kind, example), "most": TOLERANCES[element]}
    for kind, example in attention_samples(bench.sizes, DType.BFLOAT16).items():
        call = call_on(bench, kind, example, drawn(example, seed=2))
        (act,) = (one for one in work_of(kind, call) or () if isinstance(one, AttentionAct))
        seconds = bench.seconds(_act(bench, kind, call))
        taken = bench.attention.takes(act)
        rows[f"{kind} bfloat16"] |= {"seconds": seconds, "flop_per_s": act.flop / seconds, "by_cudnn": taken}
    figures = {"acts": rows, "refused": list(bench.attention.refused)}
    if bench.attention.refused:
        raise PartFailed(f"cuDNN has no kernel for {bench.attention.refused[0]}", figures)
    return judged(figures, rows)


def judged(figures: Figures, rows: Rows) -> Figures:
    """The figures; a part fails by errors, and by what is slow, each named."""
    wrong = [f"{name} is off by {row['error']:.2g}" for name, row in rows.items() if not row["error"] <= row["most"]]
    slow = [name for name, row in rows.items() if not row.get("fast", True)]
    problems = [*wrong[:3], *([f"slow: {', '.join(slow)}"] if slow else [])]
    if problems:
        raise PartFailed("; ".join(problems), figures)
    return figures
