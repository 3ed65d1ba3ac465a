"""Machine code of rows: as accurate as float32 allows, the same whatever lies beside a row, and honest about NaN."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.base.machine_code import dispatcher
from strategy.graph.ops import REGISTRY, machine_coded, row_kernels
from strategy.graph.ops.base import Call, Workspace
from strategy.graph.ops.half_precision import run_act
from strategy.sbp.tensor import DType
from tests.support.long_parameters import long_but

ROOT = Path(__file__).parents[4]
Array = npt.NDArray[Any]
OPERANDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gelu": ("x", "x", {}),
    "gelu_grad": ("xx", "x", {}),
    "silu": ("x", "x", {}),
    "silu_grad": ("xx", "x", {}),
    "swiglu": ("xx", "x", {}),
    "swiglu_grad": ("xxx", "xx", {}),
    "layer_norm": ("xdd", "xss", {}),
    "layer_norm_grad": ("xdspx", "xdd", {}),
    "rms_norm": ("xd", "xs", {}),
    "rms_norm_grad": ("xdpx", "xd", {}),
    "sum_exp": ("xs", "s", {}),
    "sum_exp_grad": ("xss", "x", {}),
    "cross_entropy_grad": ("xls", "x", {"classes": 33, "ignore_index": 2, "label_smoothing": 0.1}),
}
"""Forms: x is [rows, width], d [width], s [rows], p [rows] and positive, l the label of every row."""
WIDTH = 33


def run(kind: str, inputs: list[Array], rows: int, dtype: str = "float32") -> list[Array]:
    """The results of an op on rows."""
    reads, writes, attrs = OPERANDS[kind]
    shapes = {"x": (rows, WIDTH), "d": (WIDTH,), "s": (rows,), "p": (rows,), "l": (rows,)}
    outputs = tuple(np.empty(shapes[form], dtype) for form in writes)
    box = ((0, rows), (0, WIDTH))
    whole = Call(np, attrs, tuple(inputs), outputs, (), (box,) * len(reads), (box,) * len(writes), Workspace(np))
    run_act(REGISTRY[kind], whole)
    return list(outputs)


def drawn(kind: str, rows: int, spread: float = 2.0) -> list[Array]:
    rng = np.random.default_rng(rows)
    made: dict[str, Callable[[], Array]] = {
        "x": lambda: rng.standard_normal((rows, WIDTH)) * spread,
        "d": lambda: rng.standard_normal(WIDTH),
        "s": lambda: rng.standard_normal(rows),
        "p": lambda: rng.uniform(0.2, 2, rows),
        "l": lambda: rng.integers(0, WIDTH, rows).astype(np.int32),
    }
    return [one if one.dtype.kind == "i" else one.astype(np.float32) for one in (made[f]() for f in OPERANDS[kind][0])]


def wide(arrays: list[Array]) -> list[Array]:
    return [one if one.dtype.kind == "i" else one.astype(np.float64) for one in arrays]


def test_exponentials_are_within_two_units_in_the_last_place() -> None:
    x = np.linspace(-87.3, 88.3, 2_000_003).astype(np.float32)
    y = np.empty_like(x)
    row_kernels.exp(x, y)
    true = np.exp(x.astype(np.float64))
    assert (np.abs(y - true) / np.spacing(true.astype(np.float32))).max() < 2


def test_exponentials_at_the_ends_of_the_range() -> None:
    x = np.array([-np.inf, -1e30, -104, -88, 0, -0.0, 1e-45, -1e-45, 88.4, 1e30, np.inf, np.nan], np.float32)
    y = np.empty_like(x)
    row_kernels.exp(x, y)
    assert y[:8].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert np.isposinf(y[8:11]).all()
    assert np.isnan(y[11])


@pytest.mark.parametrize("spread", [1e-6, 1.0, 8.0])
@pytest.mark.parametrize("kind", OPERANDS)
def test_results_are_those_of_float64(kind: str, spread: float) -> None:
    inputs = drawn(kind, 150, spread)
    with np.errstate(over="ignore"):
        found, true = run(kind, inputs, 150), run(kind, wide(inputs), 150, "float64")
    for ours, exact in zip(found, true, strict=True):
        assert np.abs(ours - exact).max() <= 4e-6 * np.abs(exact).max()


@pytest.mark.parametrize("kind", OPERANDS)
def test_they_are_those_of_numpy_where_there_is_no_compiler(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = drawn(kind, 40)
    found = run(kind, inputs, 40)
    monkeypatch.setattr(machine_coded, "_is_usable", lambda: False)
    for ours, plain in zip(found, run(kind, inputs, 40), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-5, atol=1e-5 * np.abs(plain).max())


@pytest.mark.parametrize("kind", OPERANDS)
def test_a_row_has_the_same_bits_whatever_lies_beside_it(kind: str) -> None:
    rows = 23
    reads, writes, _ = OPERANDS[kind]
    inputs = drawn(kind, rows)
    whole = run(kind, inputs, rows)
    for first, last in ((0, 1), (1, 4), (5, 23), (22, 23)):
        cut = [one if form == "d" else one[first:last].copy() for form, one in zip(reads, inputs, strict=True)]
        for form, part, all_rows in zip(writes, run(kind, cut, last - first), whole, strict=True):
            if form != "d":
                assert part.tobytes() == all_rows[first:last].tobytes()


@pytest.mark.parametrize("kind", OPERANDS)
def test_operands_need_not_lie_flat_nor_be_writeable(kind: str) -> None:
    inputs = drawn(kind, 12)
    strided = [np.repeat(one, 2, axis=-1)[..., ::2] for one in inputs]
    for one in strided:
        one.flags.writeable = False
    for ours, apart in zip(run(kind, inputs, 12), run(kind, strided, 12), strict=True):
        assert ours.tobytes() == apart.tobytes()


@pytest.mark.parametrize("kind", OPERANDS)
def test_operands_need_not_be_aligned(kind: str) -> None:
    inputs, rows = drawn(kind, 12), 12
    shifted = [np.empty(one.nbytes + 1, np.uint8)[1:].view(one.dtype).reshape(one.shape) for one in inputs]
    for one, same in zip(shifted, inputs, strict=True):
        one[...] = same
    for ours, apart in zip(run(kind, inputs, rows), run(kind, shifted, rows), strict=True):
        assert ours.tobytes() == apart.tobytes()


@pytest.mark.parametrize("kind", OPERANDS)
def test_no_rows_are_no_trouble(kind: str) -> None:
    for form, found in zip(OPERANDS[kind][1], run(kind, drawn(kind, 0), 0), strict=True):
        assert found.size == 0 or (form == "d" and not found.any())


@pytest.mark.parametrize("kind", OPERANDS)
def test_nan_is_seen_in_its_row_and_in_no_other(kind: str) -> None:
    reads, writes, _ = OPERANDS[kind]
    for position in (at for at, form in enumerate(reads) if form == "x"):
        inputs = drawn(kind, 9)
        inputs[position][4, 7] = np.nan
        for form, found in zip(writes, run(kind, inputs, 9), strict=True):
            if form in "xs" and kind != "swiglu_grad":
                assert np.isnan(found[4]).any()
            if form in "xs":
                assert not np.isnan(np.delete(found, 4, axis=0)).any()


@pytest.mark.parametrize("kind", ["gelu", "silu"])
def test_activations_of_extremes(kind: str) -> None:
    x = np.zeros((1, WIDTH), np.float32)
    x[0, :6] = [-1e30, -200, -0.0, 1e-42, 200, 1e30]
    (found,) = run(kind, [x], 1)
    assert found[0, 4:6].tolist() == [200, np.float32(1e30)]
    assert np.abs(found[0, 1:4]).max() < 1e-30
    (slope,) = run(f"{kind}_grad", [np.ones_like(x), x], 1)
    np.testing.assert_allclose(slope[0, [1, 2, 3, 4]], [0, 0.5, 0.5, 1], atol=1e-30)


@pytest.mark.parametrize("kind", ["sum_exp_grad", "cross_entropy_grad"])
def test_what_is_written_over_an_operand_is_the_same(kind: str) -> None:
    rows = 7
    inputs = drawn(kind, rows)
    (apart,) = run(kind, inputs, rows)
    logits = inputs[0].copy()
    box = ((0, rows), (0, WIDTH))
    operands = (logits, *inputs[1:])
    run_act(REGISTRY[kind], Call(np, OPERANDS[kind][2], operands, (logits,), (), (box,) * 3, (box,), Workspace(np)))
    assert logits.tobytes() == apart.tobytes()


def test_results_need_not_lie_flat_nor_be_aligned() -> None:
    x = drawn("gelu", 6)[0]
    (plain,) = run("gelu", [x], 6)
    strided = np.zeros((6, 2 * WIDTH), np.float32)[:, ::2]
    shifted = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    box = ((0, 6), (0, WIDTH))
    for y in (strided, shifted):
        run_act(REGISTRY["gelu"], Call(np, {}, (x,), (y,), (), (box,), (box,), Workspace(np)))
        assert y.tobytes() == plain.tobytes()


def test_gradients_of_rows_may_be_read_only() -> None:
    grad, dx = np.ones((3, 4), np.float32), np.empty((5, 4), np.float32)
    grad.flags.writeable = False
    boxes = (((0, 3),), ((0, 3), (0, 4))), (((0, 5), (0, 4)),)
    call = Call(np, {"axis": 0, "size": 5}, (np.array([1, 4, 1]), grad), (dx,), (), *boxes, Workspace(np))
    run_act(REGISTRY["gather_grad"], call)
    assert dx[:, 0].tolist() == [0, 2, 0, 0, 1]


def test_a_row_that_sees_no_key_weighs_all_alike_and_passes_nothing_back() -> None:
    scores = np.ones((2, 3), np.float32)
    total, top = np.empty(2, np.float32), np.empty(2, np.float32)
    row_kernels.weigh_rows(scores, np.float32(1), 2, -1, 0, total, top)
    assert scores.tolist() == [[np.float32(1) / 3] * 3, [1, 0, 0]]
    assert total.tolist() == [3, 1]
    assert top[0] == np.float32(-1e30)
    slopes, ones = np.ones((2, 3), np.float32), (np.float32(1), np.float32(1))
    row_kernels.weigh_rows_again(scores, slopes, *ones, 2, -1, 0, np.ones(2, np.float32), np.zeros(2, np.float32))
    assert scores.tolist() == slopes.tolist() == [[0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("kind", ["adam", "adamw"])
@pytest.mark.parametrize("size", [0, 1, 7, 1000])
def test_an_update_is_that_of_float64_and_each_element_s_own(kind: str, size: int) -> None:
    rng = np.random.default_rng(size)
    grad, param, m = (rng.standard_normal(size).astype(np.float32) for _ in range(3))
    v, scalars = rng.uniform(0.01, 1, size).astype(np.float32), [np.array(0.5), np.array(1e-2)]
    attrs = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}

    def updated(dtype: str, part: slice) -> list[Array]:
        updates = [one[part].astype(dtype) for one in (param, m, v)]
        inputs = (grad[part].astype(dtype), *(one.astype(dtype) for one in scalars))
        call = Call(np, attrs, inputs, (), tuple(updates), (), (), Workspace(np), number=3)
        run_act(REGISTRY[kind], call)
        return updates

    whole = updated("float32", slice(None))
    for ours, exact in zip(whole, updated("float64", slice(None)), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=2e-6, atol=2e-6)
    for part in (slice(1, 6), slice(3, 4), slice(size // 3, size)):
        for ours, rest in zip(updated("float32", part), whole, strict=True):
            assert ours.tobytes() == rest[part].tobytes()


@pytest.mark.parametrize("dtype", [np.dtype("float16"), DType.BFLOAT16.numpy])
def test_halves_are_computed_in_single_precision_and_rounded_once(dtype: np.dtype[Any]) -> None:
    inputs = [one.astype(dtype) for one in drawn("layer_norm", 6)]
    y, mean, rstd = np.empty((6, WIDTH), dtype), np.empty(6, np.float32), np.empty(6, np.float32)
    box = ((0, 6), (0, WIDTH))
    call = Call(np, {}, tuple(inputs), (y, mean, rstd), (), (box,) * 3, (box,) * 3, Workspace(np))
    run_act(REGISTRY["layer_norm"], call)
    single, *_ = run("layer_norm", [one.astype(np.float32) for one in inputs], 6)
    assert y.tobytes() == single.astype(dtype).tobytes()


@pytest.mark.parametrize("symbol", long_but(row_kernels.OBJECT_FILE.entries, 0, 7, 12, 15))
def test_bits_are_those_of_numba_s_own_calls(symbol: str) -> None:
    kernel = row_kernels.OBJECT_FILE.entries[symbol]
    numbas = dispatcher(kernel.__wrapped__, _nrt=False, **kernel.options)
    rng = np.random.default_rng(1)
    drawn_as = {
        "Vector": lambda: (rng.standard_normal(WIDTH) * 20).astype(np.float32),
        "Matrix": lambda: (rng.standard_normal((WIDTH, WIDTH)) * 20).astype(np.float32),
        "Indices": lambda: rng.integers(-1, WIDTH + 1, WIDTH),
        "np.float32": lambda: np.float32(rng.uniform(0.1, 1)),
        "int": lambda: int(rng.integers(3, 9)),
        "bool": lambda: bool(rng.integers(2)),
    }
    forms = [form for name, form in kernel.__wrapped__.__annotations__.items() if name != "return"]
    for odd in ((), (np.nan,), (np.inf, -np.inf), (np.nan, -0.0, np.inf, -1e30, 1e30, 1e-42)):
        ours = [drawn_as[form]() for form in forms]
        for array in (one for one in ours if isinstance(one, np.ndarray) and one.dtype == np.float32):
            array.reshape(-1)[rng.integers(0, array.size, len(odd))] = odd
        theirs = [one.copy() if isinstance(one, np.ndarray) else one for one in ours]
        kernel(*ours)
        numbas(*theirs)
        for mine, his in zip(ours, theirs, strict=True):
            assert np.asarray(mine).tobytes() == np.asarray(his).tobytes()


def test_acts_load_no_compiler() -> None:
    row_kernels.OBJECT_FILE.load()
    program = (
        "import sys; import numpy as np; from strategy.graph.ops import row_kernels\n"
        "row_kernels.exp(np.ones(2, np.float32), np.ones(2, np.float32))\n"
        "print(sorted({'numba', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_acts_run_without_a_compiler() -> None:
    program = (
        "import numpy as np\n"
        "from strategy.graph.ops.machine_coded import as_machine_code\n"
        "print(as_machine_code(np, [np.ones(2, np.float32)]), as_machine_code(np, [np.ones(2)]))"
    )
    for off, said in (("1", "False False"), ("0", "True False")):
        environment = {**os.environ, "NUMBA_DISABLE_JIT": off}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == said


def turned(x: Array, attrs: dict[str, Any], dtype: str = "float32", first: int = 0) -> Array:
    """Rotary of x[b, s, h, d], whose positions begin at `first`."""
    out, (b, s, *others) = np.empty(x.shape, dtype), x.shape
    box = ((0, b), (first, first + s), *((0, size) for size in others))
    call = Call(np, attrs, (x.astype(dtype, copy=False),), (out,), (), (box,), (box,), Workspace(np))
    run_act(REGISTRY["rotary"], call)
    return out


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("more", [{"base": 1e4}, {"frequencies": (0.9, 0.07), "scale": 1.3}])
def test_turns_are_those_of_float64_and_of_numpy(
    reverse: int, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(reverse).standard_normal((3, 7, 4, 6)).astype(np.float32)
    attrs = {**more, "reverse": reverse}
    found, exact = turned(x, attrs), turned(x, attrs, "float64")
    np.testing.assert_allclose(found, exact, rtol=2e-6, atol=2e-6)
    assert turned(x[1:2, 2:5], attrs, first=2).tobytes() == found[1:2, 2:5].tobytes(), "whatever lies beside"
    across = np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    assert turned(across, attrs).tobytes() == found.tobytes()
    assert turned(x[:0], attrs).shape == (0, 7, 4, 6)
    monkeypatch.setattr(machine_coded, "_is_usable", lambda: False)
    np.testing.assert_allclose(turned(x, attrs), found, rtol=1e-6, atol=1e-6)
