"""Operators: the arithmetic that every kind of tensor offers, each method one op.

A traced tensor appends the op to a graph, a global tensor runs it at once; what `x + y` means is said here once.
Operands follow NumPy's rules of broadcasting; dims may be counted from the right, as in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from strategy.base.errors import InputError
from strategy.graph.graph import Attrs
from strategy.sbp.tensor import DType, Shape

Number = int | float
Axes = int | Sequence[int] | None


class Operators:
    """Base of tensors: subclasses have a `shape` and say what it means to apply an op."""

    __slots__ = ()

    @property
    def shape(self) -> Shape:
        """Logical shape."""
        raise NotImplementedError

    def operate(self, kind: str, *others: Self, attrs: Attrs | None = None) -> Self:
        """The first output of an op of this kind on this tensor and `others`."""
        raise NotImplementedError

    def __add__(self, other: Self | Number) -> Self:
        return self._shift(other) if isinstance(other, Number) else self._with("add", other)

    def __radd__(self, other: Number) -> Self:
        return self + other

    def __sub__(self, other: Self | Number) -> Self:
        return self._shift(-other) if isinstance(other, Number) else self._with("sub", other)

    def __rsub__(self, other: Number) -> Self:
        return -self + other

    def __mul__(self, other: Self | Number) -> Self:
        return self._scale(other) if isinstance(other, Number) else self._with("mul", other)

    def __rmul__(self, other: Number) -> Self:
        return self * other

    def __truediv__(self, other: Self | Number) -> Self:
        return self._scale(1 / other) if isinstance(other, Number) else self._with("div", other)

    def __neg__(self) -> Self:
        return self.operate("neg")

    def __matmul__(self, other: Self) -> Self:
        """[..., k] @ [k, n], or one product per leading index of two tensors of three or more dims."""
        if not isinstance(other, Operators):
            return NotImplemented
        if len(other.shape) == 2:
            return self._with("matmul", other)
        return self._with("batch_matmul", other, attrs={"transpose_a": 0, "transpose_b": 0})

    def _shift(self, amount: Number) -> Self:
        return self.operate("shift", attrs={"amount": float(amount)})

    def _scale(self, factor: Number) -> Self:
        return self.operate("scale", attrs={"factor": float(factor)})

    def _with(self, kind: str, other: object, attrs: Attrs | None = None) -> Self:
        return self.operate(kind, other, attrs=attrs) if isinstance(other, type(self)) else NotImplemented

    def matmul(self, other: Self) -> Self:
        """`self @ other`."""
        return self @ other

    def maximum(self, other: Self) -> Self:
        """The larger of each pair of elements."""
        return self.operate("maximum", other)

    def minimum(self, other: Self) -> Self:
        """The smaller of each pair of elements."""
        return self.operate("minimum", other)

    def sum(self, axes: Axes = None, *, keepdims: bool = False) -> Self:
        """Sum over some dims, or all."""
        return self._reduce("reduce_sum", axes, keepdims)

    def mean(self, axes: Axes = None, *, keepdims: bool = False) -> Self:
        """Mean over some dims, or all."""
        return self._reduce("reduce_mean", axes, keepdims, counted=True)

    def max(self, axes: Axes = None, *, keepdims: bool = False) -> Self:
        """Largest element over some dims, or all."""
        return self._reduce("reduce_max", axes, keepdims)

    def min(self, axes: Axes = None, *, keepdims: bool = False) -> Self:
        """Smallest element over some dims, or all."""
        return self._reduce("reduce_min", axes, keepdims)

    def _reduce(self, kind: str, axes: Axes, keepdims: bool, *, counted: bool = False) -> Self:
        dims = range(len(self.shape)) if axes is None else (axes,) if isinstance(axes, int) else axes
        chosen = tuple(sorted(_from_left(axis, len(self.shape)) for axis in dims))
        count = {"count": math.prod(self.shape[axis] for axis in chosen)} if counted else {}
        return self.operate(kind, attrs={"axes": chosen, "keepdims": int(keepdims), **count})

    def exp(self) -> Self:
        """e to the power of each element."""
        return self.operate("exp")

    def log(self) -> Self:
        """Natural logarithm."""
        return self.operate("log")

    def sqrt(self) -> Self:
        """Square root."""
        return self.operate("sqrt")

    def square(self) -> Self:
        """Square."""
        return self.operate("square")

    def abs(self) -> Self:
        """Absolute value."""
        return self.operate("abs")

    def relu(self) -> Self:
        """The element where it is positive, else zero."""
        return self.operate("relu")

    def gelu(self) -> Self:
        """GELU, by its tanh formula."""
        return self.operate("gelu")

    def tanh(self) -> Self:
        """Hyperbolic tangent."""
        return self.operate("tanh")

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x))."""
        return self.operate("sigmoid")

    def silu(self) -> Self:
        """x * sigmoid(x)."""
        return self.operate("silu")

    def softmax(self) -> Self:
        """Soft-max over the last dim."""
        return self.operate("softmax")

    def log_softmax(self) -> Self:
        """Logarithm of the soft-max over the last dim."""
        return self.operate("log_softmax")

    def cast(self, dtype: DType) -> Self:
        """The same numbers in another dtype."""
        return self.operate("cast", attrs={"dtype": str(dtype)})

    def reshape(self, shape: Shape, /) -> Self:
        """The same elements under another shape; one dim may be -1, what is left for it."""
        return self.operate("reshape", attrs={"shape": filled(shape, self.shape)})

    def transpose(self, perm: tuple[int, ...], /) -> Self:
        """Dims in the order `perm`."""
        return self.operate("transpose", attrs={"perm": tuple(_from_left(dim, len(self.shape)) for dim in perm)})

    @property
    def T(self) -> Self:
        """Dims backwards."""
        return self.transpose(tuple(reversed(range(len(self.shape)))))

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Self:
        """Slices without a step, of the first dims."""
        cuts = index if isinstance(index, tuple) else (index,)
        dims = self.shape
        if len(cuts) > len(dims) or any(not isinstance(cut, slice) or cut.step not in (None, 1) for cut in cuts):
            raise InputError("not an index", got=index, expected=f"at most {len(dims)} slices without a step")
        bounds = [cut.indices(size)[:2] for cut, size in zip(cuts, dims, strict=False)]
        bounds += [(0, size) for size in dims[len(cuts) :]]
        begin, end = (tuple(bound[side] for bound in bounds) for side in (0, 1))
        return self.operate("slice", attrs={"begin": begin, "end": end})


def filled(shape: Shape, elements_of: Shape) -> Shape:
    """A shape with its one -1 replaced by what makes it hold as many elements as another."""
    if shape.count(-1) != 1:
        return shape
    known = -math.prod(shape)
    rest = math.prod(elements_of) // known if known > 0 else -1
    return tuple(rest if dim == -1 else dim for dim in shape)


def _from_left(dim: int, dims: int) -> int:
    return dim + dims if dim < 0 else dim
