"""Expressions: what a foreign program computes, in our ops, before anything is appended to a graph.

An expression is an op of ours on expressions. Making one applies the identities that keep the graph small: transposes
are composed and vanish where they cancel, reshapes of reshapes are one, a scale passes through a transpose. So what is
found by patterns (attention, rotary positions, norms) is found whichever way it was written.

Some kinds are no ops of ours and only exist to be matched: `times_table` and `plus_table` (a tensor and a constant
array), `erf`, and `is_nan`. One that is left over is reported where it stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from strategy.base.errors import InputError
from strategy.graph.graph import Attrs
from strategy.graph.ops import REGISTRY
from strategy.models.imported.foreign import MOST_NODES, Array
from strategy.sbp.tensor import Shape, TensorSpec

UNFINISHED = {
    "times_table": "a product with a constant table that is no rotary position",
    "plus_table": "a sum with a constant table that is no mask of attention",
    "erf": "an error function outside of a GELU",
    "is_nan": "a test for figures that are no numbers",
}
"""Kinds that are no ops of ours -> what they mean where one is left over."""


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """One value. `serial` counts them; `table` is the constant operand of an unfinished kind."""

    kind: str
    inputs: tuple[Expression, ...]
    attrs: Attrs
    spec: TensorSpec
    scope: tuple[str, ...]
    serial: int
    where: str
    table: Array | None = None

    @property
    def shape(self) -> Shape:
        """Of the value."""
        return self.spec.shape

    @property
    def x(self) -> Expression:
        """The first operand."""
        return self.inputs[0]


@dataclass(slots=True)
class Expressions:
    """Makes expressions; `scope` and `where` say which node of the program they are made for."""

    scope: tuple[str, ...] = ()
    where: str = ""
    made: int = 0
    leaves: dict[str, Expression] = field(default_factory=dict)

    def leaf(self, kind: str, name: str, spec: TensorSpec, scope: tuple[str, ...] = ()) -> Expression:
        """An input or a parameter."""
        found = self._new(kind, (), {"name": name}, spec)
        self.leaves[name] = replace(found, scope=scope)
        return self.leaves[name]

    def _new(
        self, kind: str, inputs: tuple[Expression, ...], attrs: Attrs, spec: TensorSpec, table: Array | None = None
    ) -> Expression:
        self.made += 1
        if self.made > MOST_NODES:
            raise InputError("too many operations", where=self.where, expected=f"at most {MOST_NODES}")
        return Expression(kind, inputs, attrs, spec, self.scope, self.made, self.where, table)

    def op(
        self, kind: str, *inputs: Expression, **attrs: int | float | str | tuple[int, ...] | tuple[float, ...]
    ) -> Expression:
        """An op of ours as it is.

        Raises:
            InputError: the operands do not compose.
        """
        spec = REGISTRY[kind].infer([one.spec for one in inputs], [], attrs)[0]
        return self._new(kind, inputs, attrs, spec)

    def table(self, kind: str, x: Expression, table: Array) -> Expression:
        """An unfinished kind: x and a constant array."""
        shape = np.broadcast_shapes(x.shape, table.shape)
        return self._new(kind, (x,), {}, TensorSpec(shape, x.spec.dtype), table)

    def unfinished(self, kind: str, x: Expression) -> Expression:
        """An unfinished kind of one operand."""
        return self._new(kind, (x,), {}, x.spec)

    def batch_norm(
        self, x: Expression, operands: tuple[Expression, ...], epsilon: float, momentum: float
    ) -> Expression:
        """A batch norm, which is several ops when trained."""
        attrs = {"epsilon": epsilon, "momentum": momentum}
        return self._new("batch_norm", (x, *operands), attrs, x.spec)

    def transpose(self, x: Expression, perm: tuple[int, ...]) -> Expression:
        """Dims in another order."""
        if x.kind == "transpose":
            inner = x.attrs["perm"]
            assert isinstance(inner, tuple)
            return self.transpose(x.x, tuple(int(inner[p]) for p in perm))
        if perm == tuple(range(len(x.shape))):
            return x
        if x.kind == "scale":
            return self.scale(self.transpose(x.x, perm), float(x.attrs["factor"]))  # type: ignore[arg-type]
        return self.op("transpose", x, perm=perm)

    def reshape(self, x: Expression, shape: Shape) -> Expression:
        """The same elements under another shape."""
        if math.prod(shape) != math.prod(x.shape):
            raise InputError("reshape changes the number of elements", got=x.shape, expected=str(shape))
        while x.kind == "reshape":
            x = x.x
        if _flipped(x)[1] and len(shape) > 2 and shape[-2:] == x.shape[-2:]:  # leading dims alone change
            inner = self.reshape(x.x, (*shape[:-2], shape[-1], shape[-2]))
            return self.transpose(inner, (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
        return x if shape == x.shape else self.op("reshape", x, shape=shape)

    def expand(self, x: Expression, shape: Shape) -> Expression:
        """Dims of one, and dims that are not there, repeated."""
        return x if shape == x.shape else self.op("expand", x, shape=shape)

    def scale(self, x: Expression, factor: float) -> Expression:
        """x times a number."""
        if x.kind == "scale":
            x, factor = x.x, factor * float(x.attrs["factor"])  # type: ignore[arg-type]
        return x if factor == 1.0 else self.op("scale", x, factor=factor)

    def shift(self, x: Expression, amount: float) -> Expression:
        """x plus a number."""
        return x if amount == 0.0 else self.op("shift", x, amount=amount)

    def binary(self, kind: str, x: Expression, y: Expression) -> Expression:
        """An element-wise op of two; what was only repeated to fit need not be."""
        shape = np.broadcast_shapes(x.shape, y.shape)
        pair = [
            one.x if one.kind == "expand" and np.broadcast_shapes(one.x.shape, other.shape) == shape else one
            for one, other in ((x, y), (y, x))
        ]
        if np.broadcast_shapes(pair[0].shape, pair[1].shape) != shape:
            pair = [x, y]
        return self.op(kind, *pair)

    def product(self, a: Expression, b: Expression) -> Expression:
        """A product of matrices, or of two stacks of them."""
        if len(b.shape) == 2 and len(a.shape) >= 2:
            if b.kind == "transpose":
                return self.op("matmul_nt", a, b.x)
            return self.op("matmul", a, b)
        (a, flip_a), (b, flip_b) = (_flipped(one) for one in (a, b))
        return self.op("batch_matmul", a, b, transpose_a=flip_a, transpose_b=flip_b)

    def linear(self, x: Expression, weight: Expression, bias: Expression | None) -> Expression:
        """x times the transposed weight[out, in], plus a bias."""
        one_row = len(x.shape) == 1
        y = self.op("matmul_nt", self.reshape(x, (1, *x.shape)) if one_row else x, weight)
        if one_row:
            y = self.reshape(y, y.shape[1:])
        return y if bias is None else self.op("add", y, bias)

    def cut(self, x: Expression, dim: int, begin: int, end: int) -> Expression:
        """A slice along one dim."""
        if begin == 0 and end == x.shape[dim]:
            return x
        if not 0 <= begin < end <= x.shape[dim]:
            raise InputError("a slice that is not there", got=(begin, end), expected=f"within {x.shape[dim]}")
        start = tuple(begin * (d == dim) for d in range(len(x.shape)))
        stop = tuple(end if d == dim else size for d, size in enumerate(x.shape))
        return self.op("slice", x, begin=start, end=stop)

    def reduce(self, kind: str, x: Expression, dims: tuple[int, ...], *, keep: bool) -> Expression:
        """A reduction over some dims."""
        count = {"count": math.prod(x.shape[d] for d in dims)} if kind == "reduce_mean" else {}
        return self.op(kind, x, axes=tuple(sorted(dims)), keepdims=int(keep), **count)


def _flipped(x: Expression) -> tuple[Expression, int]:
    """A stack of matrices without a transpose of its last two dims, and whether there was one."""
    dims = len(x.shape)
    if x.kind == "transpose" and x.attrs["perm"] == (*range(dims - 2), dims - 1, dims - 2):
        return x.x, 1
    return x, 0
