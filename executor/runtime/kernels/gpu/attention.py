"""Attention as a value: which acts cuDNN does. `cudnn.py` runs them.

Softmax of products of queries and keys by the scale, causal or not, key heads shared by runs of query heads, the
log-sum-exp kept; no dropout. Acts with scores below a cap, windows, sinks or hidden keys, with heads that no stride
reaches, in float32, or of queries cut out of the middle of a causal sequence are left to the array module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from executor.runtime.kernels.gpu.launch import address_of, element_of
from strategy.graph.ops.attention import gradient_heads
from strategy.graph.ops.base import Array, Call
from strategy.graph.ops.heads import Heads, has_sinks, heads_of
from strategy.sbp.tensor import Shape

_MOST_WIDTH = 128
_WIDTH_MULTIPLE = 8
"""Of heads that cuDNN's fused attention takes, forward and backward, on every generation from the A100 on."""


class CausalMask(StrEnum):
    """Which keys a query sees, by the name that cuDNN has for the corner that the diagonal starts from."""

    NONE = ""
    FIRST = "TOP_LEFT"
    """Query i those up to i."""
    LAST = "BOTTOM_RIGHT"
    """The last query all of them, every other one fewer than the one behind it."""


@dataclass(frozen=True, slots=True)
class StridedOperand:
    """One operand by cuDNN's name: an array, and how cuDNN sees it: [b, heads, positions, width], strides in elements.

    `offset` is the first element's.
    """

    name: str
    array: Array
    shape: Shape
    strides: Shape
    offset: int = 0


@dataclass(frozen=True, slots=True)
class AttentionAct:
    """One act: forward, q, k, v -> o, stats; backward, q, k, v, o, dO, stats -> dQ, dK, dV."""

    reads: tuple[StridedOperand, ...]
    writes: tuple[StridedOperand, ...]
    scale: float
    mask: CausalMask

    @property
    def is_gradient(self) -> bool:
        """Whether it is the backward pass."""
        return len(self.reads) > 3

    @property
    def parts(self) -> tuple[StridedOperand, ...]:
        """All operands, those that are read first."""
        return (*self.reads, *self.writes)

    @property
    def flop(self) -> int:
        """Of the products, masked pairs left out: half of them."""
        (b, h, s, d), t = self.reads[0].shape, self.reads[1].shape[2]
        products = 5 if self.is_gradient else 2
        return 2 * products * b * h * s * t * d // (1 if self.mask is CausalMask.NONE else 2)

    @property
    def nbytes(self) -> int:
        """Bytes that are read and written at least."""
        return sum(int(array.nbytes) for array in {address_of(part.array): part.array for part in self.parts}.values())


def attention(call: Call) -> tuple[AttentionAct, ...] | None:
    """See `strategy.graph.ops.attention`."""
    out, lse = call.outputs
    heads = heads_of(call, call.inputs)
    mask = _mask(call, heads)
    if mask is None or not _is_taken(heads):
        return None
    reads = _operands(("q", "k", "v"), heads, call.inputs)
    writes = (_by_position("o", out), _statistics(lse))
    return (AttentionAct(reads, writes, heads.scoring.scale, mask),)


def attention_grad(call: Call) -> tuple[AttentionAct, ...] | None:
    """See `strategy.graph.ops.attention`."""
    *operands, out, lse, dout = call.inputs
    heads = heads_of(call, tuple(operands))
    mask = _mask(call, heads)
    if mask is None or not _is_taken(heads):
        return None
    reads = _operands(("q", "k", "v"), heads, operands)
    reads += (_by_position("o", out), _by_position("dO", dout), _statistics(lse))
    writes = _operands(("dQ", "dK", "dV"), gradient_heads(call), call.outputs)
    return (AttentionAct(reads, writes, heads.scoring.scale, mask),)


def _mask(call: Call, heads: Heads) -> CausalMask | None:
    """None for a mask that has no name."""
    if heads.visible is not None or heads.scoring.softcap or heads.scoring.window or has_sinks(call.attrs):
        return None
    if not heads.causal:
        return CausalMask.NONE
    ahead = heads.first_query - heads.first_key
    if not ahead:
        return CausalMask.FIRST
    return CausalMask.LAST if ahead + heads.q.shape[1] == heads.k.shape[1] else None


def _is_taken(heads: Heads) -> bool:
    """Whether cuDNN takes such heads: a key head for each run of query heads, one stride from each head to the next."""
    _, _, runs, each, width = heads.q.shape
    uniform = min(runs, each) == 1 or heads.q.strides[2] == each * heads.q.strides[3]
    widths = (width, heads.v.shape[-1])
    fits = all(size % _WIDTH_MULTIPLE == 0 and size <= _MOST_WIDTH for size in widths)
    return element_of(heads.q).is_half and heads.one_to_one and uniform and fits and heads.q.size > 0


def _operands(names: tuple[str, str, str], heads: Heads, arrays: Sequence[Array]) -> tuple[StridedOperand, ...]:
    """q, k and v, or their gradients; packed ones are parts of one array."""
    b, s, runs, each, width = heads.q.shape
    owners = [arrays[0]] * 3 if len(arrays) < 3 else arrays[:3]
    stride = heads.q.strides[3] if each > 1 or runs == 1 else heads.q.strides[2]
    nbytes = (heads.q.strides[0], stride, heads.q.strides[1], heads.q.strides[4])
    step = heads.q.dtype.itemsize
    firsts = (0, each * width, (each + 1) * width) if len(arrays) < 3 else (0, 0, 0)
    found = [
        StridedOperand(names[0], owners[0], (b, runs * each, s, width), tuple(n // step for n in nbytes), firsts[0])
    ]
    for name, view, owner, first in zip(names[1:], (heads.k, heads.v), owners[1:], firsts[1:], strict=True):
        shape = tuple(view.shape[dim] for dim in (0, 2, 1, 3))
        found.append(
            StridedOperand(name, owner, shape, tuple(view.strides[dim] // step for dim in (0, 2, 1, 3)), first)
        )
    return tuple(found)


def _by_position(name: str, array: Array) -> StridedOperand:
    """[b, s, h, d] by heads."""
    b, s, h, d = array.shape
    return StridedOperand(name, array, (b, h, s, d), (s * h * d, d, h * d, 1))


def _statistics(lse: Array) -> StridedOperand:
    """[b, h, s], one figure wide."""
    b, h, s = lse.shape
    return StridedOperand("stats", lse, (b, h, s, 1), (h * s, s, 1, 1))
