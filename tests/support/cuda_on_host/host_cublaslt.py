"""cuBLASLt on the host: takes the calls that nvmath's bindings take, by the signatures that are checked in.

It knows matrices as the library does, by columns, with leading dimensions, strides of stacks, transposes, epilogues and
scales (cuBLAS 13, "Using the cuBLASLt API"); so what it computes is right only if every descriptor is.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from strategy.graph.ops.base import Array
from tests.support.cuda_on_host.signatures import checked_in

_TYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
_TYPES |= {28: np.dtype(ml_dtypes.float8_e4m3fn), 29: np.dtype(ml_dtypes.float8_e5m2)}
WORKSPACE_NBYTES = 4096
"""That every algorithm asks for."""


class HostCublasLt:
    """The module `nvmath.bindings.cublasLt`; `calls` are a line for each descriptor and product."""

    def __init__(self) -> None:
        self._known = checked_in()
        self._objects: dict[int, dict[str, Any]] = {}
        self.calls: list[str] = []
        for name, members in self._known["enums"].items():
            setattr(self, name, _Enum(members))
        algorithm = ("algo", [("data_", "<u8", (8,))])
        rest = [("workspace_size", "<u8"), ("state", "<i4"), ("waves_count", "<f4"), ("reserved", "<i4", (4,))]
        self.matmul_heuristic_result_dtype = np.dtype([algorithm, *rest])
        self.refuses = False
        """Whether there is no algorithm for anything."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        arguments = self._known["functions"][name]

        def call(*given: Any) -> Any:
            if len(given) != len(arguments) or not all(isinstance(one, int) for one in given):
                raise TypeError(f"{name}({', '.join(arguments)}) is given {given}")
            return getattr(self, f"_{name}")(*given)

        return call

    def _new(self, **figures: Any) -> int:
        self._objects[len(self._objects) + 1] = figures
        return len(self._objects)

    def _create(self) -> int:
        return self._new()

    def _matmul_preference_create(self) -> int:
        return self._new()

    def _matmul_preference_destroy(self, preference: int) -> None:
        self._objects[preference].clear()

    def _matmul_desc_create(self, compute: int, scale: int) -> int:
        names = {value: name for name, value in self._known["types"]["ComputeType"].items()}
        return self._new(compute=names[compute], scale=scale)

    def _matrix_layout_create(self, kind: int, rows: int, columns: int, leading: int) -> int:
        return self._new(type=_TYPES[kind], rows=rows, columns=columns, leading=leading)

    def _size(self, enum: str, attribute: int) -> type[np.generic]:
        names = {value: name for name, value in self._known["enums"][enum].items()}
        found: type[np.generic] = getattr(np, self._known["sizes"][enum][names[attribute]])
        return found

    def _get_matmul_desc_attribute_dtype(self, attribute: int) -> type[np.generic]:
        return self._size("MatmulDescAttribute", attribute)

    def _get_matmul_preference_attribute_dtype(self, attribute: int) -> type[np.generic]:
        return self._size("MatmulPreferenceAttribute", attribute)

    def _get_matrix_layout_attribute_dtype(self, attribute: int) -> type[np.generic]:
        return self._size("MatrixLayoutAttribute", attribute)

    def _matmul_desc_set_attribute(self, of: int, attribute: int, buffer: int, nbytes: int) -> None:
        self._set("MatmulDescAttribute", of, attribute, buffer, nbytes)

    def _matmul_preference_set_attribute(self, of: int, attribute: int, buffer: int, nbytes: int) -> None:
        self._set("MatmulPreferenceAttribute", of, attribute, buffer, nbytes)

    def _matrix_layout_set_attribute(self, of: int, attribute: int, buffer: int, nbytes: int) -> None:
        self._set("MatrixLayoutAttribute", of, attribute, buffer, nbytes)

    def _set(self, enum: str, of: int, attribute: int, buffer: int, nbytes: int) -> None:
        dtype = np.dtype(self._size(enum, attribute))
        if nbytes != dtype.itemsize:
            raise ValueError(f"{enum} {attribute} has {dtype.itemsize} bytes, not {nbytes}")
        names = {value: name for name, value in self._known["enums"][enum].items()}
        self._objects[of][names[attribute]] = int(np.frombuffer(ctypes.string_at(buffer, nbytes), dtype)[0])

    def _matmul_algo_get_heuristic(
        self, handle: int, of: int, a: int, b: int, c: int, d: int, preference: int, count: int, found: int, number: int
    ) -> None:
        limits = self._objects[preference]
        few = 0 if self.refuses else min(count, 3)
        for index in range(few):
            one = np.zeros(1, self.matmul_heuristic_result_dtype)
            one["algo"]["data_"] = index + 1
            one["workspace_size"] = min(WORKSPACE_NBYTES, limits["MAX_WORKSPACE_BYTES"])
            ctypes.memmove(found + index * one.itemsize, one.ctypes.data, one.itemsize)
        ctypes.memmove(number, np.array([few], np.int32).ctypes.data, 4)
        at_least = {name: value for name, value in limits.items() if name.startswith("MIN_")}
        self.calls.append(f"plan {self._text(of)} A {self._text(a)} B {self._text(b)} D {self._text(d)} {at_least}")

    def _text(self, of: int) -> str:
        """A descriptor as text, addresses left out."""
        figures = {name: "given" if name.endswith("POINTER") else str(v) for name, v in self._objects[of].items()}
        return " ".join(f"{name}={value}" for name, value in figures.items())

    def _matmul(
        self,
        handle: int,
        of: int,
        alpha: int,
        a: int,
        a_layout: int,
        b: int,
        b_layout: int,
        beta: int,
        c: int,
        c_layout: int,
        d: int,
        d_layout: int,
        algorithm: int,
        workspace: int,
        nbytes: int,
        stream: int,
    ) -> None:
        assert (c, c_layout) == (d, d_layout)
        self._check_codes(of, *(self._objects[layout] for layout in (a_layout, b_layout, d_layout)))
        assert (_scalar(alpha), _scalar(beta)) == (1.0, 0.0)
        self.calls.append(f"matmul by plan on stream {stream} with {nbytes} bytes of workspace")
        assert np.frombuffer(ctypes.string_at(algorithm, 64), np.uint64)[0] >= 1
        figures = SimpleNamespace(**{"TRANSA": 0, "TRANSB": 0, **self._objects[of]})
        left, right = (self._matrices(at, layout) for at, layout in ((a, a_layout), (b, b_layout)))
        result, wide = self._matrices(d, d_layout), np.float64
        x = (left.swapaxes(1, 2) if figures.TRANSA else left).astype(wide)
        y = (right.swapaxes(1, 2) if figures.TRANSB else right).astype(wide)
        for name, operand in (("A_SCALE_POINTER", x), ("B_SCALE_POINTER", y)):
            if name in self._objects[of]:
                operand *= _scalar(self._objects[of][name])
        names = {value: name for name, value in self._known["enums"]["Epilogue"].items()}
        product = self._epilogue(names[figures.EPILOGUE], figures, x, x @ y, result.dtype)
        result[...] = product.astype(result.dtype)

    def _check_codes(self, of: int, a: dict[str, Any], b: dict[str, Any], d: dict[str, Any]) -> None:
        """Products of eight bits are of a matrix that is turned over and one that is not, and never both in E5M2."""
        eight = [matrix["type"].itemsize == 1 for matrix in (a, b)]
        assert eight[0] == eight[1]
        if eight[0]:
            flags = {"TRANSA": 0, "TRANSB": 0, **self._objects[of]}
            assert (flags["TRANSA"], flags["TRANSB"]) == (1, 0)
            assert not a["type"] == b["type"] == _TYPES[29]
            assert all(matrix[side] % 16 == 0 for matrix in (a, b, d) for side in ("rows", "columns"))
            assert d["type"].itemsize > 1

    def _epilogue(self, name: str, figures: SimpleNamespace, x: Array, product: Array, dtype: Any) -> Array:
        """What follows a stack of products, as the library names it."""
        rows, columns = product.shape[1:]
        bias = _at(figures.BIAS_POINTER, (rows,), dtype) if hasattr(figures, "BIAS_POINTER") else np.zeros(0)
        if name == "BGRADA":
            bias[...] = x.sum(axis=(0, 2)).astype(dtype)
        if name in ("BIAS", "GELU_AUX_BIAS"):
            product = product + bias.astype(np.float64)[None, :, None]
        if hasattr(figures, "EPILOGUE_AUX_POINTER"):
            assert figures.EPILOGUE_AUX_LD % 8 == 0  # the library wants multiples of 8
            aux = _at(figures.EPILOGUE_AUX_POINTER, (columns, figures.EPILOGUE_AUX_LD), dtype)[:, :rows].T
            if name == "GELU_AUX_BIAS":
                aux[...] = product[0].astype(dtype)
                product = _gelu(product)
            else:
                product = product * _gelu_slope(aux.astype(np.float64))[None]
        if name == "DGELU_BGRAD":
            bias[...] = product.sum(axis=(0, 2)).astype(dtype)
        return product

    def _matrices(self, at: int, layout: int) -> Array:
        """A stack [count, rows, columns] at an address, by columns."""
        figures = self._objects[layout]
        count, between = figures.get("BATCH_COUNT", 1), figures.get("STRIDED_BATCH_OFFSET", 0)
        rows, columns, leading = (figures[name] for name in ("rows", "columns", "leading"))
        assert leading >= rows
        step = figures["type"].itemsize
        size = (count - 1) * between + (columns - 1) * leading + rows
        flat = _at(at, (size,), figures["type"]).view(f"u{step}")
        there = np.lib.stride_tricks.as_strided(flat, (count, rows, columns), (between * step, step, leading * step))
        return there.view(figures["type"])


class _Enum(dict[str, int]):
    """Members by name, as attributes and by index."""

    def __getattr__(self, name: str) -> int:
        return self[name]


def _at(address: int, shape: tuple[int, ...], dtype: Any) -> Array:
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype).reshape(shape)


def _scalar(address: int) -> float:
    return float(np.frombuffer(ctypes.string_at(address, 4), np.float32)[0])


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu_slope(x: Array) -> Array:
    t = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
