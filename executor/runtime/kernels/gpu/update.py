"""Launches of AdamW over many tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from executor.runtime.kernels.gpu.launch import Addresses, Launch, address_of, blocks_for, element_of, struct, wide
from executor.runtime.kernels.gpu.program import BLOCK
from strategy.graph.graph import Attrs
from strategy.graph.ops.base import Array, Call, float_attr
from strategy.sbp.tensor import DType

TENSORS = 24
"""Of one launch."""
CHUNK = BLOCK * 16
"""Elements of a block."""


@dataclass(frozen=True, slots=True)
class AdamTensor:
    """One tensor's gradient, its parameter and state in float32, and the half-precision copy of it, if any."""

    grad: Array
    param: Array
    mean: Array
    square: Array
    copy: Array | None = None


@dataclass(frozen=True, slots=True)
class AdamShared:
    """What tensors have in common that are updated at once: figures on the device, number and attributes.

    `factor` and `lr` are float32 scalars, `step` an int64 one that counts updates, 0 where this one is skipped; where
    it is None, `number` counts.
    """

    factor: Array
    lr: Array
    step: Array | None
    number: int
    attrs: Attrs

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for updates that may be one launch."""
        figures = (self.factor, self.lr, *(() if self.step is None else (self.step,)))
        return (*map(address_of, figures), self.number, *sorted(self.attrs.items()))


@dataclass(frozen=True, slots=True)
class AdamUpdate:
    """One act of AdamW: it may wait for others like it."""

    tensor: AdamTensor
    shared: AdamShared

    @property
    def numbered(self) -> bool:
        """Whether it counts by the number of the act."""
        return self.shared.step is None


class WaitingUpdates:
    """AdamW acts that have been asked for and not been issued: those that follow one another become one launch.

    Nothing else may be issued, copied or waited for before they are: what they read could be written over, and what
    they write is not there.
    """

    def __init__(self) -> None:
        self._tensors: list[AdamTensor] = []
        self._shared: AdamShared | None = None

    def add(self, update: AdamUpdate) -> tuple[Launch, ...]:
        """Takes an act in; the launches that come before it because they are not like it."""
        tensor, shared = update.tensor, update.shared
        before: tuple[Launch, ...] = ()
        if self._shared is not None and (
            self._shared.key != shared.key or tensor.grad.dtype != self._tensors[0].grad.dtype
        ):
            before = self.take()
        self._shared = shared
        self._tensors.append(tensor)
        return before

    def take(self) -> tuple[Launch, ...]:
        """The launches of all that wait; nothing waits then."""
        if self._shared is None:
            return ()
        found = adamw_tensors(self._tensors, self._shared)
        self._tensors, self._shared = [], None
        return found


def adamw_update(call: Call) -> tuple[AdamUpdate] | None:
    """See `strategy.graph.ops.optimizer`; None where parameters are not in float32."""
    if element_of(call.updates[0]) != DType.FLOAT32:
        return None
    grad, factor, lr, *step = call.inputs
    shared = AdamShared(factor, lr, step[0] if step else None, call.number + 1, call.attrs)
    return (AdamUpdate(AdamTensor(grad, *call.updates), shared),)


def adamw(call: Call) -> tuple[Launch, ...] | None:
    """The launch of one update that waits for no other."""
    updates = adamw_update(call)
    return None if updates is None else adamw_tensors([updates[0].tensor], updates[0].shared)


def adamw_tensors(tensors: Sequence[AdamTensor], shared: AdamShared) -> tuple[Launch, ...]:
    """One update of many tensors, whose gradients are of one dtype: a launch for every `TENSORS` of them."""
    attrs = shared.attrs
    rates = [np.float64(float_attr(attrs, key)) for key in ("beta1", "beta2")]
    rest = [np.float32(float_attr(attrs, key)) for key in ("epsilon", "weight_decay")]
    scalars = (shared.factor, shared.lr, shared.step, np.int64(shared.number), *rates, *rest)
    found = []
    for first in range(0, len(tensors), TENSORS):
        some = tensors[first : first + TENSORS]
        sizes = [tensor.param.size for tensor in some]
        begins = [0, *accumulate(blocks_for(size, CHUNK) for size in sizes)]
        columns = [(t.grad, t.param, t.mean, t.square, t.copy) for t in some]
        tables = (Addresses(arrays, TENSORS) for arrays in zip(*columns, strict=True))
        fits = wide([array for column in columns for array in column])
        arguments = (*tables, _counts(sizes), _counts(begins), *scalars, fits)
        found.append(Launch(adamw.__name__, element_of(some[0].grad), (begins[-1], 1, 1), arguments))
    return tuple(found)


def _counts(figures: Sequence[int]) -> np.void:
    """Figures, the last one repeated in the room that is left."""
    return struct([*figures, *[figures[-1]] * (TENSORS + 1 - len(figures))])
