"""The table of operators: what each one of ATen means in our ops. ONNX's are translated into it (`onnx_operators`).

An operator reads its arguments by the names of ATen's schema, as tensors or as what is known already, and gives a value
or several. The table itself is in `table`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from strategy.base.errors import InputError
from strategy.models.imported import patterns
from strategy.models.imported.exported import DTYPES
from strategy.models.imported.expression import Expression, Expressions
from strategy.models.imported.foreign import Array
from strategy.models.imported.values import Tensor, Value, Values, from_left, uniform


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one node."""

    values: Values
    given: Mapping[str, Value]

    @property
    def make(self) -> Expressions:
        """What expressions are made by."""
        return self.values.make

    def has(self, name: str) -> bool:
        """Whether an argument is given and not None."""
        return self.given.get(name) is not None

    def tensor(self, name: str) -> Tensor:
        """A tensor; a plain number is an array without dims."""
        found = self.given.get(name)
        if isinstance(found, (Expression, np.ndarray)):
            return found
        if isinstance(found, (bool, int, float)):
            return np.asarray(found)
        raise InputError("a tensor is missing", where=name, got=found)

    def expression(self, name: str) -> Expression:
        """A tensor that depends on inputs or parameters."""
        found = self.tensor(name)
        if not isinstance(found, Expression):
            raise InputError("a constant where a tensor is computed on", where=name, got=found.shape)
        return found

    def optional(self, name: str) -> Expression | None:
        """A tensor that need not be there."""
        return self.expression(name) if self.has(name) else None

    def array(self, name: str) -> Array:
        """A tensor that is known."""
        found = self.tensor(name)
        if isinstance(found, Expression):
            raise InputError("a figure that depends on the inputs", where=name, expected="one that is known")
        return found

    def tensors(self, name: str) -> list[Tensor]:
        """Several tensors."""
        found = self.given.get(name)
        parts = found if isinstance(found, tuple) else ()
        return [part for part in parts if isinstance(part, (Expression, np.ndarray))]

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number."""
        found = self.given.get(name)
        if found is None and default is not None:
            return default
        if isinstance(found, np.ndarray) and found.size == 1 and found.dtype.kind in "iub":
            found = int(found.reshape(-1)[0])
        if not isinstance(found, int) or abs(found) > 2**63:
            raise InputError("not a whole number", where=name, got=_told(found))
        return int(found)

    def figure(self, name: str, default: float | None = None) -> float:
        """A number."""
        found = self.given.get(name)
        if found is None and default is not None:
            return default
        if isinstance(found, np.ndarray) and found.size == 1 and found.dtype.kind in "iufb":
            found = float(found.reshape(-1)[0])
        if not isinstance(found, (int, float)) or not math.isfinite(found):
            raise InputError("not a figure", where=name, got=_told(found))
        return float(found)

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Whole numbers; one alone is a list of one."""
        found = self.given.get(name)
        if found is None and default is not None:
            return default
        if isinstance(found, np.ndarray) and found.dtype.kind in "iu" and found.ndim <= 1 and found.size <= 2**10:
            return tuple(int(one) for one in found.reshape(-1))
        parts = found if isinstance(found, tuple) else (found,)
        plain = [
            int(p.reshape(-1)[0]) if isinstance(p, np.ndarray) and p.size == 1 and p.dtype.kind in "iu" else p
            for p in parts
        ]
        if not all(isinstance(one, int) and abs(one) <= 2**63 for one in plain):
            raise InputError("not whole numbers", where=name, got=_told(found))
        return tuple(int(one) for one in plain)  # type: ignore[arg-type]

    def pair(self, name: str, default: tuple[int, ...]) -> tuple[int, int]:
        """A figure per dim of an image; one alone is for both."""
        found = self.integers(name, default)
        if len(found) not in (1, 2):
            raise InputError("not of images", where=name, got=found, expected="two dims")
        return found[0], found[-1]


def _told(found: Value) -> object:
    return found.shape if isinstance(found, (Expression, np.ndarray)) else found


Meaning = Callable[[Arguments], Value]


def same(o: Arguments) -> Value:
    """What copies, reshapes memory, asserts or drops out in evaluation: the tensor itself."""
    for name in ("self", "input"):
        if name in o.given:
            return o.given[name]
    raise InputError("a tensor is missing")


def dropout(o: Arguments) -> Value:
    """x; a program that was exported in training drops elements out as it says."""
    x, rate = o.tensor("input"), o.figure("p", 0.5)
    trains = o.given.get("train", o.given.get("training", False))
    if not trains or rate == 0 or not isinstance(x, Expression):
        return x
    return o.make.op("dropout", x, rate=rate, seed=x.serial)


def cast(o: Arguments) -> Value:
    """Another dtype."""
    x, code = o.tensor("self"), o.given.get("dtype")
    if code is None:
        return x
    if not isinstance(code, int) or code not in DTYPES:
        raise InputError("an unknown dtype", got=_told(code))
    return cast_to(o, x, DTYPES[code])


def cast_to(o: Arguments, x: Tensor, name: str) -> Tensor:
    """Another dtype. Floats stay what they are: in which precision they are, the plan says."""
    if not isinstance(x, Expression):
        return x.astype(np.float32 if name in ("bfloat16", "float16") else name)
    if x.spec.dtype.is_float and name in ("float16", "bfloat16", "float32", "float64"):
        return x
    if not x.spec.dtype.is_float and name in ("int32", "int64"):
        return x
    if name in ("bool", "int8", "uint8", "int16"):
        raise InputError("a dtype that no op of ours takes", got=name)
    return o.make.op("cast", x, dtype=name)


def _pair_of(o: Arguments) -> tuple[Tensor, Tensor]:
    return o.tensor("self"), o.tensor("other")


def add(o: Arguments) -> Value:
    """self + alpha other."""
    x, y = _pair_of(o)
    alpha = o.figure("alpha", 1.0)
    if alpha != 1.0:
        y = o.make.scale(y, alpha) if isinstance(y, Expression) else y * alpha
    return total(o, x, y)


def total(o: Arguments, x: Tensor, y: Tensor) -> Tensor:
    """The sum of two tensors, of which either may be known."""
    make = o.make
    if isinstance(x, Expression) and isinstance(y, Expression):
        turned = patterns.rotary_of(make, x, y)
        return make.binary("add", x, y) if turned is None else turned
    if not isinstance(x, Expression) and not isinstance(y, Expression):
        return o.values.elementwise(np.add, x, y)
    tensor, array = (x, y) if isinstance(x, Expression) else (y, x)
    assert isinstance(tensor, Expression) and isinstance(array, np.ndarray)  # noqa: PT018 - the cases above
    array = o.values.of_any_sample(array, tensor)
    amount = uniform(array)
    if amount is not None and math.isfinite(amount):
        grown = np.broadcast_shapes(tensor.shape, array.shape)
        return make.shift(make.expand(tensor, grown), amount)
    return make.table("plus_table", tensor, array)


def sub(o: Arguments) -> Value:
    """self - alpha other."""
    x, y = _pair_of(o)
    return difference(o, x, y, o.figure("alpha", 1.0))


def rsub(o: Arguments) -> Value:
    """other - alpha self."""
    x, y = _pair_of(o)
    return difference(o, y, x, o.figure("alpha", 1.0))


def difference(o: Arguments, x: Tensor, y: Tensor, alpha: float) -> Tensor:
    """x - alpha y."""
    if isinstance(x, Expression) and isinstance(y, Expression) and alpha == 1.0:
        return o.make.binary("sub", x, y)
    if not isinstance(y, Expression):
        y = o.values.elementwise(np.multiply, y, np.asarray(-1 if alpha == 1.0 else -alpha, _signed(y)))
    else:
        y = o.make.scale(y, -alpha)
    return total(o, x, y)


def _signed(x: Array) -> Any:
    return x.dtype if x.dtype.kind in "if" else np.int64


def mul(o: Arguments) -> Value:
    """self times other."""
    x, y = _pair_of(o)
    return times(o, x, y)


def times(o: Arguments, x: Tensor, y: Tensor) -> Tensor:
    """The product of two tensors element by element, of which either may be known."""
    make = o.make
    if isinstance(x, Expression) and isinstance(y, Expression):
        for one, other in ((x, y), (y, x)):
            norm = patterns.rms_norm_of(make, one, other)
            if norm is not None:
                return norm
        found = patterns.gelu_of(make, x, y) or patterns.silu_of(make, x, y)
        if found is not None:
            return found
        return make.op("square", x) if x is y else make.binary("mul", x, y)
    if not isinstance(x, Expression) and not isinstance(y, Expression):
        return o.values.elementwise(np.multiply, x, y)
    tensor, array = (x, y) if isinstance(x, Expression) else (y, x)
    assert isinstance(tensor, Expression) and isinstance(array, np.ndarray)  # noqa: PT018 - the cases above
    array = o.values.of_any_sample(array, tensor)
    factor = uniform(array)
    if factor is not None and math.isfinite(factor):
        return make.scale(make.expand(tensor, np.broadcast_shapes(tensor.shape, array.shape)), factor)
    return make.table("times_table", tensor, array)


def div(o: Arguments) -> Value:
    """self over other."""
    x, y = _pair_of(o)
    make = o.make
    if not isinstance(y, Expression):
        if not isinstance(x, Expression):
            return o.values.elementwise(_quotient, x, y)
        by = uniform(y)
        if by is None or by == 0 or not math.isfinite(by):
            raise InputError("a quotient by a constant table", got=y.shape)
        return make.scale(x, 1.0 / by)
    if isinstance(x, Expression):
        return make.binary("div", x, y)
    return reciprocal_of(o, y, uniform(x))


def _quotient(x: Array, y: Array) -> Array:
    """As ONNX has it of integers, and ATen of floats."""
    return x // y if x.dtype.kind in "iu" and y.dtype.kind in "iu" and np.all(y != 0) else x / y


def reciprocal_of(o: Arguments, x: Expression, over: float | None = 1.0) -> Expression:
    """A number over x."""
    if over is None or not math.isfinite(over):
        raise InputError("a constant table over a tensor")
    if x.kind == "sqrt":
        return o.make.scale(o.make.op("rsqrt", x.x), over)
    return o.make.scale(o.make.op("div", o.make.op("full_like", x, value=1.0), x), over)


def reciprocal(o: Arguments) -> Value:
    """1 / self."""
    x = o.tensor("self")
    return (
        reciprocal_of(o, x) if isinstance(x, Expression) else o.values.elementwise(np.reciprocal, x.astype(np.float64))
    )


def power(o: Arguments) -> Value:
    """self to the power of a number."""
    x = o.tensor("self")
    name = "exponent" if o.has("exponent") else "other"
    if not isinstance(x, Expression):
        return o.values.elementwise(np.power, x.astype(np.float64), np.asarray(o.array(name), np.float64)).astype(
            x.dtype
        )
    exponent = o.figure(name)
    if exponent == 3.0:
        return o.make.binary("mul", o.make.op("square", x), x)
    kinds = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt"}
    if exponent == 1.0:
        return x
    if exponent == -1.0:
        return reciprocal_of(o, x)
    if exponent not in kinds:
        raise InputError("no op of ours for this power", got=exponent, expected="-1, -0.5, 0.5, 1, 2 or 3")
    return o.make.op(kinds[exponent], x)


def unary(kind: str, function: Callable[..., Array] | None = None) -> Meaning:
    """An op of ours of one operand; `function` is what it is of what is known."""

    def meaning(o: Arguments) -> Value:
        x = o.tensor("self") if "self" in o.given else o.tensor("input")
        if isinstance(x, Expression):
            return o.make.op(kind, x)
        if function is None:
            raise InputError("a constant where a tensor is computed on", got=x.shape)
        return o.values.elementwise(function, x)

    return meaning


def known(function: Callable[..., Array], *names: str) -> Meaning:
    """A function of what is known alone."""

    def meaning(o: Arguments) -> Value:
        return o.values.elementwise(function, *(o.array(name) for name in names))

    return meaning


def erf(o: Arguments) -> Value:
    """The error function, of which a GELU is made."""
    return o.make.unfinished("erf", o.expression("self"))


def is_nan(o: Arguments) -> Value:
    """Which figures are no numbers."""
    x = o.tensor("self")
    return o.make.unfinished("is_nan", x) if isinstance(x, Expression) else o.values.elementwise(np.isnan, x)


def where(o: Arguments) -> Value:
    """self where the condition holds, else other; what only guards a soft-max against no numbers is not needed."""
    condition, x, y = o.tensor("condition"), o.tensor("self"), o.tensor("other")
    if isinstance(condition, Expression):
        if condition.kind == "is_nan" and isinstance(y, Expression) and condition.x is y and y.kind == "softmax":
            return y
        raise InputError("a choice that depends on the inputs")
    if isinstance(x, Expression) or isinstance(y, Expression):
        seen, scores, hidden = (condition, x, y) if isinstance(x, Expression) else (~condition, y, x)
        constant = uniform(hidden) if isinstance(hidden, np.ndarray) else None
        if isinstance(scores, Expression) and constant is not None and constant < patterns.HIDDEN:
            table = o.values.elementwise(np.where, seen, np.asarray(0.0), np.asarray(-np.inf))
            return o.make.table("plus_table", scores, table)
        raise InputError("a choice between tensors by a constant table")
    return o.values.elementwise(np.where, condition, x, y)


def gelu(o: Arguments) -> Value:
    """GELU, exact or by its tanh formula."""
    return o.make.op("gelu" if o.given.get("approximate") == "tanh" else "gelu_exact", o.expression("self"))


def softmax(o: Arguments) -> Value:
    """Soft-max over the last dim."""
    return _over_last(o, "softmax")


def log_softmax(o: Arguments) -> Value:
    """Logarithm of the soft-max over the last dim."""
    return _over_last(o, "log_softmax")


def _over_last(o: Arguments, kind: str) -> Value:
    x, dim = o.expression("self"), o.integer("dim", -1)
    if from_left(dim, len(x.shape)) != len(x.shape) - 1:
        raise InputError("a soft-max over another dim than the last", got=dim)
    return o.make.op(kind, x)


def reduced(kind: str) -> Meaning:
    """A reduction over dims, or over all."""

    def meaning(o: Arguments) -> Value:
        x = o.expression("self")
        dims = o.integers("dim", ()) if o.has("dim") else ()
        chosen = tuple(from_left(d, len(x.shape)) for d in dims) or tuple(range(len(x.shape)))
        return o.make.reduce(kind, x, chosen, keep=bool(o.integer("keepdim", 0)))

    return meaning


def relu6(o: Arguments) -> Value:
    """min(relu(x), 6), as MobileNet's."""
    x = o.make.op("relu", o.expression("self"))
    return o.make.op("minimum", x, o.make.op("full_like", x, value=6.0))
