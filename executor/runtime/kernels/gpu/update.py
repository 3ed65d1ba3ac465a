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
    """What tensors have in common that are updated at once: figures on the device, and attributes.

    `factor` and `lr` are float32 scalars, `step` an int64 one that counts updates, 0 where this one is skipped; where
    it is None, the number of the act does.
    """

    factor: Array
    lr: Array
    step: Array | None
    attrs: Attrs

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for updates of one number that may be one launch."""
        figures = (self.factor, self.lr, *(() if self.step is None else (self.step,)))
        return (*map(address_of, figures), *sorted(self.attrs.items()))


@dataclass(frozen=True, slots=True, eq=False)
class AdamUpdate:
    """One act of AdamW, whatever its number: it may wait for others like it."""

    tensor: AdamTensor
    shared: AdamShared
    key: tuple[object, ...]
    """Equal for those that may be one launch."""


class WaitingUpdates:
    """AdamW acts that have been asked for and not been issued: those that follow one another become one launch.

    Nothing else may be issued, copied or waited for before they are: what they read could be written over, and what
    they write is not there.
    """

    def __init__(self) -> None:
        self._updates: list[AdamUpdate] = []
        self._number = 0

    def takes(self, update: AdamUpdate, number: int) -> bool:
        """Whether an act is like those that wait."""
        return not self._updates or (self._updates[0].key == update.key and self._number == number)

    def add(self, update: AdamUpdate, number: int) -> None:
        """Takes an act in that is like those that wait."""
        self._updates.append(update)
        self._number = number

    def take(self) -> tuple[tuple[AdamUpdate, ...], int]:
        """All that wait, and their number; nothing waits then."""
        found, self._updates = tuple(self._updates), []
        return found, self._number


def adamw_update(call: Call) -> tuple[AdamUpdate] | None:
    """See `strategy.graph.ops.optimizer`; None where parameters are not in float32."""
    if element_of(call.updates[0]) != DType.FLOAT32:
        return None
    grad, factor, lr, *step = call.inputs
    shared = AdamShared(factor, lr, step[0] if step else None, call.attrs)
    return (AdamUpdate(AdamTensor(grad, *call.updates), shared, (*shared.key, str(grad.dtype))),)


def adamw(call: Call) -> tuple[Launch, ...] | None:
    """The launch of one update that waits for no other."""
    updates = adamw_update(call)
    return None if updates is None else adamw_tensors([updates[0].tensor], updates[0].shared, call.number)


def adamw_tensors(tensors: Sequence[AdamTensor], shared: AdamShared, number: int) -> tuple[Launch, ...]:
    """One update of many tensors, whose gradients are of one dtype: a launch for every `TENSORS` of them."""
    attrs = shared.attrs
    rates = [np.float64(float_attr(attrs, key)) for key in ("beta1", "beta2")]
    rest = [np.float32(float_attr(attrs, key)) for key in ("epsilon", "weight_decay")]
    scalars = (shared.factor, shared.lr, shared.step)
    found = []
    for first in range(0, len(tensors), TENSORS):
        some = tensors[first : first + TENSORS]
        sizes = [tensor.param.size for tensor in some]
        begins = [0, *accumulate(blocks_for(size, CHUNK) for size in sizes)]
        columns = [(t.grad, t.param, t.mean, t.square, t.copy) for t in some]
        tables = (Addresses(arrays, TENSORS) for arrays in zip(*columns, strict=True))
        fits = wide([array for column in columns for array in column])
        before = (*tables, _counts(sizes), _counts(begins), *scalars)
        arguments = (*before, _count(number), *rates, *rest, fits)
        by_number = ((len(before), _count),) if shared.step is None else ()
        found.append(Launch(adamw.__name__, element_of(some[0].grad), (begins[-1], 1, 1), arguments, by_number))
    return tuple(found)


def _count(number: int) -> np.generic:
    """Which update an act is, by its own number."""
    return np.int64(number + 1)


def _counts(figures: Sequence[int]) -> np.void:
    """Figures, the last one repeated in the room that is left."""
    return struct([*figures, *[figures[-1]] * (TENSORS + 1 - len(figures))])
