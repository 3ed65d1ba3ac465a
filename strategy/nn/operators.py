"""Operators: the arithmetic that every kind of tensor offers, each method one op.

A traced tensor appends the op to a graph, a global tensor runs it at once; what `x + y` means is said here once.
Operands follow NumPy's rules of broadcasting; dims may be counted from the right, as in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self, TypeAlias, TypeGuard, TypeVar

import numpy as np

from strategy.base.errors import InputError
from strategy.graph.graph import Attrs
from strategy.nn.module import Parameter
from strategy.sbp.tensor import DType, Shape

Number = int | float
Axes = int | Sequence[int] | None
_T = TypeVar("_T")
Operand: TypeAlias = _T | Parameter | Number
"""What a tensor is computed with: another one, a parameter, or a number."""


def is_number(value: object) -> TypeGuard[Number]:
    """Whether an operand is a plain number, NumPy's included."""
    return isinstance(value, int | float | np.number)


class Operators:
    """Base of tensors: subclasses have a `shape` and say what it means to apply an op."""

    __slots__ = ()

    @property
    def shape(self) -> Shape:
        """Logical shape."""
        raise NotImplementedError

    def operate(self, kind: str, *others: Self, attrs: Attrs | None = None) -> Self:
        """The first output of an op of this kind on this tensor and `others`."""
        return self.apply("", kind, *others, attrs=attrs)

    def apply(self, label: str, kind: str, *others: Self, attrs: Attrs | None = None) -> Self:
        """The same, the op called `label` where it has a name."""
        raise NotImplementedError

    __array_ufunc__ = None  # NumPy leaves `array + tensor` to us instead of adding element by element

    __hash__ = object.__hash__

    def lifted(self, other: object) -> Self | None:
        """An operand as a tensor of this kind: a tensor, or a parameter's; None of anything else."""
        raise NotImplementedError

    def __add__(self, other: Operand[Self]) -> Self:
        return self._shift(other) if is_number(other) else self._with("add", other)

    def __radd__(self, other: Operand[Self]) -> Self:
        return self + other

    def __sub__(self, other: Operand[Self]) -> Self:
        return self._shift(-other) if is_number(other) else self._with("sub", other)

    def __rsub__(self, other: Operand[Self]) -> Self:
        return -self + other

    def __mul__(self, other: Operand[Self]) -> Self:
        return self._scale(other) if is_number(other) else self._with("mul", other)

    def __rmul__(self, other: Operand[Self]) -> Self:
        return self * other

    def __truediv__(self, other: Operand[Self]) -> Self:
        if not is_number(other):
            return self._with("div", other)
        if other == 0:
            raise InputError("a tensor is divided by zero", got=other)
        return self._scale(1 / other)

    def __rtruediv__(self, other: Operand[Self]) -> Self:
        return self._power(-1.0) * other

    def __neg__(self) -> Self:
        return self.operate("neg")

    def __pow__(self, exponent: Number) -> Self:
        """Each element to a constant power."""
        if not is_number(exponent):
            hint = "of two tensors: (x.log() * y).exp()"
            raise InputError("not an exponent", got=type(exponent).__name__, expected="a number", hint=hint)
        return self.square() if exponent == 2 else self if exponent == 1 else self._power(float(exponent))

    def __matmul__(self, other: Operand[Self]) -> Self:
        """[..., k] @ [k, n], or one product per leading index of two tensors of three or more dims."""
        operand = self._operand(other)
        if len(operand.shape) == 2:
            return self.operate("matmul", operand)
        return self.operate("batch_matmul", operand, attrs={"transpose_a": 0, "transpose_b": 0})

    def __rmatmul__(self, other: Operand[Self]) -> Self:
        return self._operand(other) @ self

    def __eq__(self, other: Operand[Self]) -> Self:  # type: ignore[override]
        """1 where elements are equal, else 0, as int32; so are all comparisons."""
        return self.operate("equal", self._compared(other))

    def __ne__(self, other: Operand[Self]) -> Self:  # type: ignore[override]
        equal = self == other
        return equal.operate("equal", equal.full_like(0))

    def __gt__(self, other: Operand[Self]) -> Self:
        return self.operate("greater", self._compared(other))

    def __ge__(self, other: Operand[Self]) -> Self:
        return self.operate("greater_equal", self._compared(other))

    def __lt__(self, other: Operand[Self]) -> Self:
        return self._compared(other).operate("greater", self)

    def __le__(self, other: Operand[Self]) -> Self:
        return self._compared(other).operate("greater_equal", self)

    def __bool__(self) -> bool:
        raise InputError(
            "a tensor is neither true nor false while a graph is traced",
            got="`if tensor:`, or `and`, `or`, `not` of one",
            hint="choose by element: condition.where(x, y); or decide on plain numbers, line by line: tensor.item()",
        )

    def __len__(self) -> int:
        """Rows of the first dim."""
        if not self.shape:
            raise InputError("a tensor without dims has no rows", got=self.shape)
        return self.shape[0]

    def _shift(self, amount: Number) -> Self:
        return self.operate("shift", attrs={"amount": float(amount)})

    def _scale(self, factor: Number) -> Self:
        return self.operate("scale", attrs={"factor": float(factor)})

    def _power(self, exponent: float) -> Self:
        return self.operate("pow", attrs={"exponent": exponent})

    def _compared(self, other: Operand[Self]) -> Self:
        return self.full_like(other) if is_number(other) else self._operand(other)

    def _with(self, kind: str, other: object) -> Self:
        return self.operate(kind, self._operand(other))

    def _operand(self, other: object) -> Self:
        """The other operand of an op.

        Raises:
            InputError: it is none; says what would be.
        """
        found = self.lifted(other)
        if found is None:
            hint = (
                "in a graph, give an array to build as an input, or hold it as a Parameter; line by line, from_numpy()"
            )
            expected = "a tensor of the same kind, a Parameter or a number"
            raise InputError("not an operand", got=type(other).__name__, expected=expected, hint=hint)
        return found

    def full_like(self, value: Number) -> Self:
        """A tensor like this one, every element `value`."""
        return self.operate("full_like", attrs={"value": float(value)})

    def where(self, chosen: Operand[Self], other: Operand[Self]) -> Self:
        """Of a comparison: `chosen` where it is 1, `other` where it is 0; a number stands for a tensor like the other.

        Raises:
            InputError: both are numbers.
        """
        if is_number(chosen) and is_number(other):
            raise InputError("two numbers have no shape", got=(chosen, other), expected="a tensor among them")
        like = self._operand(other if is_number(chosen) else chosen)
        both = [like.full_like(one) if is_number(one) else self._operand(one) for one in (chosen, other)]
        return self.operate("where", *both)

    def matmul(self, other: Operand[Self]) -> Self:
        """`self @ other`."""
        return self @ other

    def maximum(self, other: Operand[Self]) -> Self:
        """The larger of each pair of elements."""
        return self._with("maximum", other)

    def minimum(self, other: Operand[Self]) -> Self:
        """The smaller of each pair of elements."""
        return self._with("minimum", other)

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

    def reshape(self, *shape: int | Shape | str) -> Self:
        """The same elements under another shape, `reshape(2, 16)` or `reshape((2, 16))`; one dim may be -1.

        A label may come first: it names the op in a graph.
        """
        label, dims = _labelled(shape)
        return self.apply(label, "reshape", attrs={"shape": filled(dims, self.shape)})

    def transpose(self, *dims: int | Shape | str) -> Self:
        """Two dims swapped, `transpose(0, 1)`; or all of them in another order, `transpose((2, 0, 1))`.

        A label may come first: it names the op in a graph.
        """
        label, given = _labelled(dims)
        places = tuple(_from_left(dim, len(self.shape)) for dim in given)
        if len(places) == 2 and not any(isinstance(one, tuple | list) for one in dims):
            order = list(range(len(self.shape)))
            if not all(0 <= place < len(order) for place in places):
                raise InputError("no such dims", got=given, expected=f"dims of {self.shape}")
            order[places[0]], order[places[1]] = places[1], places[0]
            places = tuple(order)
        return self.apply(label, "transpose", attrs={"perm": places})

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


def _labelled(given: tuple[int | Shape | str, ...]) -> tuple[str, Shape]:
    """A label, if one comes first, and the dims that follow, in a row or in a tuple."""
    label, rest = (given[0], given[1:]) if given and isinstance(given[0], str) else ("", given)
    dims = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
    if not all(isinstance(dim, int) for dim in dims):
        raise InputError("not dims", got=given, expected="whole numbers, in a row or in one tuple")
    return str(label), tuple(dim for dim in dims if isinstance(dim, int))


def _from_left(dim: int, dims: int) -> int:
    return dim + dims if dim < 0 else dim
