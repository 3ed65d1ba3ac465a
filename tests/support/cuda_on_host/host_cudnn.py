"""cuDNN's frontend on the host: takes the graphs of attention, by the signatures that are checked in, and runs them.

Operands are read at their addresses by the dims and strides that the graph gives them; so what comes out is right only
if these are (cuDNN frontend, "Attention": O, Stats = log-sum-exp of the scaled and masked scores).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from strategy.graph.ops.base import Array
from tests.support.cuda_on_host.signatures import checked_in

_TYPES = {"FLOAT": np.dtype(np.float32), "HALF": np.dtype(np.float16), "BFLOAT16": np.dtype(ml_dtypes.bfloat16)}
WORKSPACE_NBYTES = 8192
"""That every graph asks for."""


class GraphNotSupported(Exception):
    """What the frontend raises where it has no kernel."""


@dataclass(slots=True)
class _Tensor:
    name: str
    dim: list[int] = field(default_factory=list)
    stride: list[int] = field(default_factory=list)
    data_type: str = ""
    uid: int = 0
    output: bool = False

    def set_output(self, value: bool) -> _Tensor:
        self.output = value
        return self

    def set_uid(self, uid: int) -> _Tensor:
        self.uid = uid
        return self

    def set_dim(self, dim: list[int]) -> _Tensor:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> _Tensor:
        self.stride = stride
        return self

    def set_data_type(self, dtype: str) -> _Tensor:
        self.data_type = dtype
        return self


class HostCudnn:
    """The module `cudnn`; `calls` are a line for each graph that is built."""

    cudnnGraphNotSupportedError = GraphNotSupported

    def __init__(self) -> None:
        self.known = checked_in()
        self.data_type = SimpleNamespace(**{name: name for name in self.known["data_type"]})
        self.diagonal_alignment = SimpleNamespace(**{name: name for name in self.known["diagonal_alignment"]})
        self.heur_mode = SimpleNamespace(**{name: name for name in self.known["heur_mode"]})
        self.calls: list[str] = []
        self.streams: list[int] = []
        self.refuses = False
        """Whether there is no kernel for anything."""

    def create_handle(self) -> str:
        return "handle"

    def set_stream(self, handle: str, stream: int) -> None:
        self.streams.append(stream)

    def pygraph(self, **options: Any) -> _Graph:
        assert set(options) <= set(self.known["graph"]["__init__"])
        assert options["handle"] == "handle"
        return _Graph(self)


class _Graph:
    def __init__(self, library: HostCudnn) -> None:
        self._library = library
        self._tensors: list[_Tensor] = []
        self._operands: dict[str, _Tensor] = {}
        self._options: dict[str, Any] = {}
        self._results: list[_Tensor] = []
        self._built = False

    def tensor(self, **figures: Any) -> _Tensor:
        assert set(figures) <= set(self._library.known["graph"]["tensor"])
        return _Tensor(**figures)

    def sdpa(self, **options: Any) -> list[_Tensor]:
        return self._node("sdpa", options, ("O", "Stats"))

    def sdpa_backward(self, **options: Any) -> list[_Tensor]:
        return self._node("sdpa_backward", options, ("dQ", "dK", "dV"))

    def _node(self, kind: str, options: dict[str, Any], results: tuple[str, ...]) -> list[_Tensor]:
        unknown = set(options) - set(self._library.known["attention"][kind])
        if unknown:
            raise TypeError(f"{kind} takes no {', '.join(sorted(unknown))}")
        self._operands = {name: one for name, one in options.items() if isinstance(one, _Tensor)}
        self._options = {name: one for name, one in options.items() if name not in self._operands}
        self._results = [_Tensor(name) for name in results]
        return self._results

    def build(self, heuristics: list[str]) -> None:
        assert heuristics == ["A"]
        assert all(result.output for result in self._results)
        operands = [f"{t.name}{t.dim} by {t.stride} {t.data_type}" for t in (*self._operands.values(), *self._results)]
        self._library.calls.append(f"{'; '.join(operands)}; {self._options}")
        if self._library.refuses:
            raise GraphNotSupported("no engine")
        self._built = True

    def get_workspace_size(self) -> int:
        return WORKSPACE_NBYTES

    def execute(self, tensor_dict: Mapping[int, int], workspace: int, handle: str) -> None:
        assert self._built
        assert handle == "handle"
        assert workspace
        held = {one.name: _view(tensor_dict[one.uid], one) for one in (*self._operands.values(), *self._results)}
        assert len(held) == len(tensor_dict)
        q, k, v = (held[name].astype(np.float64) for name in "qkv")
        each = q.shape[1] // k.shape[1]
        wide_k, wide_v = k.repeat(each, axis=1), v.repeat(each, axis=1)
        scores = self._masked(self._options["attn_scale"] * (q @ wide_k.swapaxes(2, 3)))
        if "dO" not in held:
            top = scores.max(axis=-1, keepdims=True)
            sums = np.log(np.exp(scores - top).sum(axis=-1, keepdims=True)) + top
            held["O"][...] = (np.exp(scores - sums) @ wide_v).astype(held["O"].dtype)
            held["Stats"][...] = sums.astype(np.float32)
            return
        o, do = held["o"].astype(np.float64), held["dO"].astype(np.float64)
        share = np.exp(scores - held["stats"])
        ds = share * (do @ wide_v.swapaxes(2, 3) - (o * do).sum(axis=-1, keepdims=True)) * self._options["attn_scale"]
        gradients = (ds @ wide_k, _by_key(ds.swapaxes(2, 3) @ q, each), _by_key(share.swapaxes(2, 3) @ do, each))
        for name, gradient in zip(("dQ", "dK", "dV"), gradients, strict=True):
            held[name][...] = gradient.astype(held[name].dtype)

    def _masked(self, scores: Array) -> Array:
        corner = self._options.get("diagonal_alignment")
        if corner is None:
            return scores
        assert self._options["diagonal_band_right_bound"] == 0
        s, t = scores.shape[2:]
        ahead = t - s if corner == "BOTTOM_RIGHT" else 0
        return np.where(np.arange(s)[:, None] + ahead >= np.arange(t)[None, :], scores, -np.inf)


def _by_key(gradient: Array, each: int) -> Array:
    """The sum over the query heads of a key head."""
    b, h, t, d = gradient.shape
    return gradient.reshape(b, h // each, each, t, d).sum(axis=2)


def _view(address: int, tensor: _Tensor) -> Array:
    dtype = _TYPES[tensor.data_type]
    size = 1 + sum((n - 1) * stride for n, stride in zip(tensor.dim, tensor.stride, strict=True))
    flat = np.frombuffer((ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address), dtype)
    strides = [stride * dtype.itemsize for stride in tensor.stride]
    return np.lib.stride_tricks.as_strided(flat, tensor.dim, strides)
