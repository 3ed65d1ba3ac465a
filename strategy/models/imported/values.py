"""Values: what a node reads and writes while a program is interpreted, an expression or an array that is known already.

A shape operation means the same on both, and this is the place that tells them apart. What is known is bounded, in
bytes of one array and of all that are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from strategy.base.errors import InputError
from strategy.models.imported.expression import Expression, Expressions
from strategy.models.imported.foreign import MOST_DIMS, Array
from strategy.sbp.tensor import Shape

Tensor = Expression | Array
Value = Tensor | int | float | str | None | tuple["Value", ...]

MOST_KNOWN_BYTES = 2**30
"""Of one array that does not depend on inputs: the mask of 32,768 positions."""
MOST_MADE_BYTES = 2**34
"""Of all of them, one after the other."""


@dataclass(frozen=True, slots=True)
class OwnBatch:
    """A program that was written for one size of batch alone, interpreted for another.

    Its sizes are literal: `shapes` tells what each node read and wrote at its own batch, and from that, which of the
    sizes of a reshape or an expand is the batch's.
    """

    own: int
    wanted: int
    shapes: Mapping[int, tuple[Shape, Shape]]

    def reshaped(self, node: int, found: Shape) -> Shape | None:
        """The shape that a reshape of `found` gives; None where its own will do.

        In row-major order, the dim that holds the batch is one that its elements pass through: as long as the batch, or
        else one that ends where the batch's own dim ended, or begins where it began.

        Raises:
            InputError: it may be either, as with a batch of one whose neighbours are joined.
        """
        if node not in self.shapes:
            return None
        source, target = self.shapes[node]
        grown = [dim for dim, (one, other) in enumerate(zip(source, found, strict=False)) if one != other]
        if len(source) != len(found) or len(grown) != 1:
            return target if source == found else None
        first = math.prod(source[: grown[0]])
        last = first * source[grown[0]]
        spans = [(math.prod(target[:dim]), math.prod(target[: dim + 1])) for dim in range(len(target))]
        divided = [dim for dim, size in enumerate(target) if size % self.own == 0]
        exact = [dim for dim in divided if target[dim] == self.own and first <= spans[dim][0] and spans[dim][1] <= last]
        ending = [dim for dim in divided if spans[dim][0] < first and last <= spans[dim][1]]
        beginning = [dim for dim in divided if spans[dim][0] == first]
        options = exact or list(dict.fromkeys([*ending, *beginning]))
        if len(options) > 1:
            got = f"{source} made {target} by a batch of {self.own}"
            raise InputError("a reshape that does not tell which dim holds the samples", got=got)
        if not options:
            return None
        (chosen,) = options
        return (*target[:chosen], target[chosen] // self.own * self.wanted, *target[chosen + 1 :])

    def expanded(self, node: int, found: Shape) -> Shape | None:
        """The shape that an expand of `found` gives: the samples' dim, the first, may be what is repeated."""
        if node not in self.shapes:
            return None
        source, target = self.shapes[node]
        if len(found) > len(target):
            return None
        padded = (1,) * (len(target) - len(found)) + found
        before = (1,) * (len(target) - len(source)) + source
        grown = [x if x != s else t for x, s, t in zip(padded, before, target, strict=True)]
        if target and before[0] == padded[0] == 1 and target[0] == self.own:
            grown[0] = self.wanted
        return tuple(grown)


@dataclass(slots=True)
class Values:
    """Operations on values; counts the bytes that are made."""

    make: Expressions
    batch: OwnBatch | None = None
    node: int = 0
    shapes: dict[int, tuple[Shape, Shape]] = field(default_factory=dict)
    made_bytes: int = 0

    def known(self, shape: Sequence[int], itemsize: int, compute: Callable[[], Array]) -> Array:
        """An array of that shape, unless it is too large.

        Raises:
            InputError: it would be.
        """
        nbytes = math.prod(shape) * itemsize if min(shape, default=1) >= 0 else -1
        self.made_bytes += max(nbytes, 0)
        if not 0 <= nbytes <= MOST_KNOWN_BYTES or self.made_bytes > MOST_MADE_BYTES or len(shape) > MOST_DIMS:
            expected = f"at most {MOST_KNOWN_BYTES} bytes, and {MOST_MADE_BYTES} in all"
            raise InputError("a constant that is too large", got=tuple(shape), expected=expected)
        with np.errstate(all="ignore"):
            return np.asarray(compute())

    def elementwise(self, function: Callable[..., Array], *arrays: Array) -> Array:
        """A NumPy function of arrays that are broadcast."""
        return self.known(np.broadcast_shapes(*(x.shape for x in arrays)), 8, lambda: function(*arrays))

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The same elements under another shape; one dim may be -1."""
        target = self.batch.reshaped(self.node, x.shape) if self.batch else None
        shape = filled_in(x.shape, tuple(shape)) if target is None else target
        self.shapes[self.node] = (x.shape, tuple(shape))
        if isinstance(x, Expression):
            return self.make.reshape(x, shape)
        return self.known(shape, x.itemsize, lambda: x.reshape(shape))

    def expand(self, x: Tensor, shape: Sequence[int], *, both_ways: bool = False) -> Tensor:
        """Dims of one, and dims that are not there, repeated; a size of -1 is the one that is there.

        With `both_ways`, sizes of one are those of x, as ONNX has it.
        """
        target = self.batch.expanded(self.node, x.shape) if self.batch else None
        if target is None:
            shape = np.broadcast_shapes(x.shape, tuple(shape)) if both_ways else shape
            lacks = len(shape) - len(x.shape)
            if lacks < 0:
                raise InputError("expand to fewer dims", got=x.shape, expected=str(tuple(shape)))
            target = tuple(x.shape[d - lacks] if n == -1 and d >= lacks else n for d, n in enumerate(shape))
        self.shapes[self.node] = (x.shape, target)
        if isinstance(x, Expression):
            return self.make.expand(x, target)
        bound = 0 if math.prod(target) <= 2**40 else 8  # a view: it takes no memory until it is computed on
        return self.known(target, bound, lambda: np.broadcast_to(x, target))

    def of_wanted_batch(self, x: Expression, others: Sequence[Expression]) -> Expression:
        """What a program for one sample joins to that sample, for as many as the others have."""
        batch, shape = self.batch, x.shape
        if batch is None or batch.own != 1 or shape[:1] != (1,) or all(one.shape[:1] == (1,) for one in others):
            return x
        return self.make.expand(x, (batch.wanted, *shape[1:]))

    def of_any_sample(self, table: Array, x: Expression) -> Array:
        """A constant table that has a program's own batch, and is the same for every sample, without that batch."""
        own = 0 if self.batch is None else self.batch.own
        alike = own > 1 and table.ndim == len(x.shape) and table.shape[0] == own and bool(np.all(table == table[:1]))
        return table[:1] if alike else table

    def samples_of(self, ids: Array) -> int | None:
        """The first size of known indices that are the same for every sample; None of others."""
        batch = self.batch
        alike = batch is not None and ids.ndim > 1 and ids.shape[0] == batch.own and bool(np.all(ids == ids[:1]))
        return batch.wanted if batch is not None and alike else None

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """Dims in another order."""
        order = tuple(from_left(p, len(x.shape)) for p in perm)
        if sorted(order) != list(range(len(x.shape))):
            raise InputError("not an order of the dims", got=tuple(perm), expected=f"{len(x.shape)} dims")
        return self.make.transpose(x, order) if isinstance(x, Expression) else x.transpose(order)

    def cut(self, x: Tensor, dim: int, begin: int | None, end: int | None, step: int = 1) -> Tensor:
        """A slice along one dim, by Python's rules."""
        dim = from_left(dim, len(x.shape))
        if step != 1 and isinstance(x, Expression):
            raise InputError("a slice with steps", got=step, expected="1")
        first, last, by = slice(begin, end, step).indices(x.shape[dim])
        if isinstance(x, Expression):
            return self.make.cut(x, dim, first, last)
        return x[(slice(None),) * dim + (slice(first, last if last >= 0 else None, by),)]

    def concat(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        """Tensors joined along a dim."""
        parts = [part for part in parts if part.shape != (0,)]
        if not parts:
            raise InputError("nothing is joined")
        dim = from_left(dim, len(parts[0].shape))
        if all(not isinstance(part, Expression) for part in parts):
            size = sum(part.size if not isinstance(part, Expression) else 0 for part in parts)
            return self.known((size,), 8, lambda: np.concatenate([np.asarray(part) for part in parts], axis=dim))
        expressions = [part for part in parts if isinstance(part, Expression)]
        if len(expressions) < len(parts):
            raise InputError("a constant table is joined to a tensor", got=[part.shape for part in parts])
        expressions = [self.of_wanted_batch(one, expressions) if dim else one for one in expressions]
        return expressions[0] if len(parts) == 1 else self.make.op("concat", *expressions, axis=dim)


def filled_in(source: Shape, target: Shape) -> Shape:
    """A shape whose one -1 is what is left for it.

    Raises:
        InputError: there are several, or nothing is left.
    """
    rest = math.prod(size for size in target if size != -1)
    if target.count(-1) == 1 and rest > 0 and math.prod(source) % rest == 0:
        return tuple(math.prod(source) // rest if size == -1 else size for size in target)
    if -1 in target or math.prod(target) != math.prod(source):
        raise InputError("reshape changes the number of elements", got=source, expected=str(target))
    return target


def from_left(dim: int, dims: int) -> int:
    """A dim counted from the left.

    Raises:
        InputError: there is none.
    """
    if not -dims <= dim < max(dims, 1):
        raise InputError("no such dim", got=dim, expected=f"-{dims} to {dims - 1}")
    return dim + dims if dim < 0 else dim


def uniform(x: Array) -> float | None:
    """The one figure that all elements of an array are; None where they differ."""
    if x.size == 0 or x.dtype.kind not in "biuf":
        return None
    first = x.reshape(-1)[0] if x.size == 1 else x.flat[0]
    return float(first) if x.size == 1 or bool(np.all(x == first)) else None
