"""Operators that move elements without computing on them, and those that make what is known."""

from __future__ import annotations

import math

import numpy as np

from strategy.base.errors import InputError
from strategy.models.imported.exported import DTYPES
from strategy.models.imported.expression import Expression
from strategy.models.imported.foreign import Array
from strategy.models.imported.operators import Arguments, Meaning
from strategy.models.imported.values import Tensor, Value, from_left

_MOST = 2**62
"""An end as far as this is no end."""


def view(o: Arguments) -> Value:
    """Another shape."""
    return o.values.reshape(o.tensor("self"), o.integers("size" if o.has("size") else "shape"))


def flatten(o: Arguments) -> Value:
    """Dims joined to one."""
    x = o.tensor("self")
    if not x.shape:
        return o.values.reshape(x, (1,))
    first = from_left(o.integer("start_dim", 0), len(x.shape))
    last = from_left(o.integer("end_dim", -1), len(x.shape))
    joined = math.prod(x.shape[first : last + 1])
    return _reshaped(o, x, (*x.shape[:first], joined, *x.shape[last + 1 :]))


def _reshaped(o: Arguments, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A shape that follows from that of x alone, whatever the batch."""
    if isinstance(x, Expression):
        return o.make.reshape(x, shape)
    return o.values.known(shape, x.itemsize, lambda: x.reshape(shape))


def unflatten(o: Arguments) -> Value:
    """A dim taken apart."""
    x = o.tensor("self")
    dim = from_left(o.integer("dim"), len(x.shape))
    return o.values.reshape(x, (*x.shape[:dim], *o.integers("sizes"), *x.shape[dim + 1 :]))


def unsqueeze(o: Arguments) -> Value:
    """A dim of one more."""
    x = o.tensor("self")
    dims = o.integers("dim")
    rank = len(x.shape) + len(dims)
    places = {from_left(dim, rank) for dim in dims}
    sizes = iter(x.shape)
    return _reshaped(o, x, tuple(1 if d in places else next(sizes) for d in range(rank)))


def squeeze(o: Arguments) -> Value:
    """Dims of one less: those that are named, or all but that of the samples."""
    x = o.tensor("self")
    chosen = {from_left(d, len(x.shape)) for d in o.integers("dim")} if o.has("dim") else set(range(len(x.shape)))
    return _reshaped(o, x, tuple(n for d, n in enumerate(x.shape) if d not in chosen or n != 1))


def expand(o: Arguments) -> Value:
    """Dims repeated."""
    return o.values.expand(o.tensor("self"), o.integers("size"))


def permute(o: Arguments) -> Value:
    """Dims in another order."""
    return o.values.transpose(o.tensor("self"), o.integers("dims"))


def transpose(o: Arguments) -> Value:
    """Two dims exchanged."""
    x = o.tensor("self")
    dims = len(x.shape)
    one, other = from_left(o.integer("dim0"), dims), from_left(o.integer("dim1"), dims)
    return o.values.transpose(x, tuple({one: other, other: one}.get(d, d) for d in range(dims)))


def matrix_transpose(o: Arguments) -> Value:
    """A matrix transposed."""
    x = o.tensor("self")
    return o.values.transpose(x, tuple(reversed(range(len(x.shape)))))


def cut(o: Arguments) -> Value:
    """A slice along a dim."""
    begin, end = o.integer("start", 0), o.integer("end", _MOST)
    return o.values.cut(
        o.tensor("self"), o.integer("dim", 0), begin, None if end >= _MOST else end, o.integer("step", 1)
    )


def select(o: Arguments) -> Value:
    """One index of a dim, which goes."""
    x = o.tensor("self")
    dim, index = from_left(o.integer("dim"), len(x.shape)), o.integer("index")
    index += x.shape[dim] if index < 0 else 0
    if not 0 <= index < x.shape[dim]:
        raise InputError("no such index", got=index, expected=f"0 to {x.shape[dim] - 1}")
    one = o.values.cut(x, dim, index, index + 1)
    return _reshaped(o, one, (*x.shape[:dim], *x.shape[dim + 1 :]))


def concat(o: Arguments) -> Value:
    """Tensors joined."""
    return o.values.concat(o.tensors("tensors"), o.integer("dim", 0))


def stack(o: Arguments) -> Value:
    """Tensors joined along a new dim."""
    parts = o.tensors("tensors")
    rank = len(parts[0].shape) + 1 if parts else 1
    dim = from_left(o.integer("dim", 0), rank)
    return o.values.concat([_reshaped(o, p, (*p.shape[:dim], 1, *p.shape[dim:])) for p in parts], dim)


def split(o: Arguments) -> Value:
    """A tensor in parts of one size, or of several."""
    x = o.tensor("self")
    dim = from_left(o.integer("dim", 0), len(x.shape))
    name = next((key for key in ("split_sizes", "split_size") if o.has(key)), "split_size")
    sizes = o.integers(name)
    if len(sizes) == 1 and sizes[0] >= 1:
        sizes = tuple(min(sizes[0], x.shape[dim] - at) for at in range(0, x.shape[dim], sizes[0]))
    if min(sizes, default=0) < 1 or sum(sizes) != x.shape[dim]:
        raise InputError("parts of another size", got=sizes, expected=f"a sum of {x.shape[dim]}")
    ends = np.cumsum(sizes)
    return tuple(o.values.cut(x, dim, int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True))


def chunk(o: Arguments) -> Value:
    """A tensor in so many parts."""
    x = o.tensor("self")
    dim, count = from_left(o.integer("dim", 0), len(x.shape)), o.integer("chunks")
    if not 1 <= count <= x.shape[dim]:
        raise InputError("no such number of parts", got=count)
    size = -(-x.shape[dim] // count)
    return tuple(o.values.cut(x, dim, at, min(at + size, x.shape[dim])) for at in range(0, x.shape[dim], size))


def size_of(o: Arguments) -> Value:
    """One size of a tensor."""
    x = o.tensor("self")
    if not x.shape:
        raise InputError("a scalar has no sizes")
    return x.shape[from_left(o.integer("dim"), len(x.shape))]


def item_of(o: Arguments) -> Value:
    """One of several values."""
    parts, index = o.given.get("a"), o.integer("b")
    if not isinstance(parts, tuple) or not -len(parts) <= index < len(parts):
        raise InputError("no such result", got=index)
    return parts[index]


def arange(o: Arguments) -> Value:
    """Numbers in a row."""
    start, end, step = o.figure("start", 0), o.figure("end"), o.figure("step", 1)
    if step == 0 or abs(start) > 2**53 or abs(end) > 2**53:
        raise InputError("no such range", got=(start, end, step))
    whole = all(float(one).is_integer() for one in (start, end, step))
    count = max(0, math.ceil((end - start) / step))
    made = o.values.known((count,), 8, lambda: start + step * np.arange(count))
    return made.astype(_dtype(o, "int64" if whole else "float32"))


def full(o: Arguments) -> Value:
    """A tensor of one figure; that of which it takes the shape may be one that is computed."""
    shape = o.integers("size") if o.has("size") else o.tensor("self").shape
    value = o.figure("fill_value", 0)
    usual = "int64" if float(value).is_integer() and not o.has("self") else "float32"
    dtype = _dtype(o, usual)
    return o.values.known(shape, 0, lambda: np.broadcast_to(np.asarray(value, dtype), shape))


def ones(o: Arguments) -> Value:
    """A tensor of ones."""
    return full(Arguments(o.values, {**o.given, "fill_value": 1}))


def zeros(o: Arguments) -> Value:
    """A tensor of zeros."""
    return full(Arguments(o.values, {**o.given, "fill_value": 0}))


def scalar_tensor(o: Arguments) -> Value:
    """A number as a tensor."""
    return np.asarray(o.figure("s"), _dtype(o, "float32"))


def _dtype(o: Arguments, usual: str) -> str:
    code = o.given.get("dtype")
    found = DTYPES.get(code, usual) if isinstance(code, int) else usual
    return "float32" if found in ("float16", "bfloat16") else found


def embedding(o: Arguments) -> Value:
    """Rows of a table by index; rows that are known are slices."""
    table, ids = o.expression("weight"), o.tensor("indices")
    if isinstance(ids, Expression):
        return o.make.op("gather", table, ids, axis=0)
    return rows_of(o, table, ids)


def rows_of(o: Arguments, table: Expression, ids: Array) -> Tensor:
    """Rows [*ids, w] of table[n, w] whose indices are known: one row, or rows that follow one another."""
    once = ids
    for dim in range(ids.ndim):
        if once.shape[dim] > 1 and np.all(once == once.take([0], axis=dim)):
            once = once.take([0], axis=dim)
    flat = once.reshape(-1)
    if flat.size == 0 or once.dtype.kind not in "iu" or np.any(flat != flat[0] + np.arange(flat.size)):
        raise InputError("rows by a constant table of indices", got=ids.shape, expected="one row, or rows in a row")
    first = int(flat[0]) + (table.shape[0] if flat[0] < 0 else 0)
    rows = o.make.cut(table, 0, first, first + flat.size)
    small = o.make.reshape(rows, (*once.shape, *table.shape[1:]))
    samples = o.values.samples_of(ids)
    lead = ids.shape if samples is None else (samples, *ids.shape[1:])
    return o.make.expand(small, (*lead, *table.shape[1:]))


def gather(o: Arguments) -> Value:
    """Elements along a dim, of what is known."""
    x, index, dim = o.array("self"), o.array("index"), o.integer("dim")
    if index.dtype.kind not in "iu" or x.ndim != index.ndim:
        raise InputError("no such indices", got=index.shape)
    dim = from_left(dim, x.ndim)
    check_range(index, x.shape[dim] if x.ndim else 1)
    return o.values.known(index.shape, 8, lambda: np.take_along_axis(x, index, dim))


def index(o: Arguments) -> Value:
    """Elements by known indices, of what is known; of a tensor, rows in a row of its first dim."""
    x = o.tensor("self")
    indices = o.given.get("indices")
    parts = indices if isinstance(indices, tuple) else (indices,)
    if isinstance(x, Expression):
        if len(parts) == 1 and isinstance(parts[0], np.ndarray):
            return rows_of(o, x, parts[0])
        raise InputError("elements by tables of indices")
    chosen = [part for part in parts if isinstance(part, np.ndarray) and part.dtype.kind in "iu"]
    if len(chosen) < len(parts) or len(chosen) > x.ndim:
        raise InputError("indices that are not known")
    for part, size in zip(chosen, x.shape, strict=False):
        check_range(part, size)
    shape = (*np.broadcast_shapes(*(part.shape for part in chosen)), *x.shape[len(chosen) :])
    return o.values.known(shape, 8, lambda: x[tuple(chosen)])


def check_range(index: Array, size: int) -> None:
    """Raise InputError if an index is not there."""
    if index.size and (index.min() < -size or index.max() >= size):
        raise InputError(
            "an index that is not there", got=(int(index.min()), int(index.max())), expected=f"below {size}"
        )


def cumsum(o: Arguments) -> Value:
    """Sums of what is before, of what is known."""
    x = o.array("self")
    dim = from_left(o.integer("dim"), x.ndim)
    return o.values.known(x.shape, 8, lambda: np.cumsum(x, axis=dim))


def diff(o: Arguments) -> Value:
    """Differences of neighbours, of what is known."""
    x, dim = o.array("self"), o.integer("dim", -1)
    before = o.array("prepend") if o.has("prepend") else None
    if o.integer("n", 1) != 1 or x.dtype.kind not in "if":
        raise InputError("differences of another order")
    joined = x if before is None else np.concatenate([before, x], axis=dim)
    return o.values.known(joined.shape, 8, lambda: np.diff(joined, axis=dim))


def triangle(*, upper: bool) -> Meaning:
    """The part above or below a diagonal, of what is known."""

    def meaning(o: Arguments) -> Value:
        x, diagonal = o.array("self"), o.integer("diagonal", 0)
        if abs(diagonal) > 2**31:
            raise InputError("no such diagonal", got=diagonal)
        return o.values.known(x.shape, 8, lambda: np.triu(x, diagonal) if upper else np.tril(x, diagonal))

    return meaning


def masked_fill(o: Arguments) -> Value:
    """A figure where a mask holds; of scores, a mask of attention."""
    x, mask, value = o.tensor("self"), o.array("mask"), o.figure("value") if _finite(o) else -math.inf
    if not isinstance(x, Expression):
        return o.values.elementwise(np.where, mask, np.asarray(value, x.dtype), x)
    if value > -1e4:
        raise InputError("a tensor with figures put in by a constant table", got=value)
    table = o.values.elementwise(np.where, mask, np.asarray(-np.inf), np.asarray(0.0))
    return o.make.table("plus_table", x, table)


def _finite(o: Arguments) -> bool:
    found = o.given.get("value")
    number = found.reshape(-1)[0] if isinstance(found, np.ndarray) and found.size == 1 else found
    return not (isinstance(number, (float, np.floating)) and number == -math.inf)
