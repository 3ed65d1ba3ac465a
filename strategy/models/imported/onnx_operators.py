"""ONNX's operators, translated into ATen's names: a row says what the inputs are called there, and the attributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from strategy.base.errors import InputError
from strategy.models.imported import network_operators as network
from strategy.models.imported import operators as numbers
from strategy.models.imported import shape_operators as shapes
from strategy.models.imported.expression import Expression
from strategy.models.imported.foreign import Array
from strategy.models.imported.onnx_file import DTYPES
from strategy.models.imported.operators import Arguments, Meaning, known, unary
from strategy.models.imported.values import Tensor, Value, from_left


def row(meaning: Meaning, *names: str, defaults: Mapping[str, Value] | None = None, **attributes: str) -> Meaning:
    """An operator of ATen: inputs by their names there, attributes of ONNX by theirs."""

    def translated(o: Arguments) -> Value:
        inputs = o.given.get("inputs")
        parts = inputs if isinstance(inputs, tuple) else ()
        given: dict[str, Value] = {**(defaults or {}), **dict(zip(names, parts, strict=False))}
        given.update({theirs: o.given[ours] for ours, theirs in attributes.items() if ours in o.given})
        return meaning(Arguments(o.values, given))

    return translated


def _input(o: Arguments, place: int) -> Value:
    inputs = o.given.get("inputs")
    return inputs[place] if isinstance(inputs, tuple) and place < len(inputs) else None


def _tensor(o: Arguments, place: int) -> Tensor:
    return Arguments(o.values, {f"input {place}": _input(o, place)}).tensor(f"input {place}")


def _axes(o: Arguments, place: int, name: str = "axes") -> tuple[int, ...] | None:
    """Dims, an attribute in older operator sets and an input in newer ones."""
    found = o.given.get(name) if o.has(name) else _input(o, place)
    return None if found is None else Arguments(o.values, {name: found}).integers(name)


def _reshape(o: Arguments) -> Value:
    x = _tensor(o, 0)
    target = Arguments(o.values, {"shape": _input(o, 1)}).integers("shape")
    if not o.integer("allowzero", 0):
        if any(size == 0 and dim >= len(x.shape) for dim, size in enumerate(target)):
            raise InputError("a size that is kept, of no dim", got=target)
        target = tuple(x.shape[dim] if size == 0 else size for dim, size in enumerate(target))
    return o.values.reshape(x, target)


def _expand(o: Arguments) -> Value:
    x = _tensor(o, 0)
    target = Arguments(o.values, {"shape": _input(o, 1)}).integers("shape")
    return o.values.expand(x, target, both_ways=True)


def _gather(o: Arguments) -> Value:
    x, index = _tensor(o, 0), _tensor(o, 1)
    axis = from_left(o.integer("axis", 0), len(x.shape))
    if isinstance(index, Expression):
        if not isinstance(x, Expression):
            raise InputError("rows of a constant table", got=x.shape)
        return o.make.op("gather", x, index, axis=axis)
    if isinstance(x, Expression):
        if index.ndim == 0:
            return shapes.select(Arguments(o.values, {"self": x, "dim": axis, "index": index}))
        if axis == 0:
            return shapes.rows_of(o, x, index)
        raise InputError("elements by tables of indices")
    shapes.check_range(index, x.shape[axis])
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    return o.values.known(shape, 8, lambda: np.take(x, index, axis=axis))


def _gather_nd(o: Arguments) -> Value:
    x, index = Arguments(o.values, {"self": _input(o, 0), "index": _input(o, 1)}), o.integer("batch_dims", 0)
    data, places = x.array("self"), x.array("index")
    if index != 0 or not places.ndim or places.dtype.kind not in "iu" or not 0 < places.shape[-1] <= data.ndim:
        raise InputError("elements by tables of indices", got=(data.shape, places.shape))
    columns = tuple(places[..., place] for place in range(places.shape[-1]))
    for column, size in zip(columns, data.shape, strict=False):
        shapes.check_range(column, size)
    shape = (*places.shape[:-1], *data.shape[len(columns) :])
    return o.values.known(shape, 8, lambda: data[columns])


def _shape(o: Arguments) -> Value:
    x = _tensor(o, 0)
    begin, end = o.integer("start", 0), o.integer("end", len(x.shape))
    return np.asarray(x.shape[begin:end], np.int64)


def _slice(o: Arguments) -> Value:
    x = _tensor(o, 0)
    lists = [Arguments(o.values, {"list": _input(o, place)}) for place in range(1, 5)]
    starts, ends = lists[0].integers("list"), lists[1].integers("list")
    axes = lists[2].integers("list", tuple(range(len(starts))))
    steps = lists[3].integers("list", (1,) * len(starts))
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise InputError("a slice by other figures", got=(starts, ends, axes, steps))
    for begin, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        x = o.values.cut(x, axis, begin, end, step)
    return x


def _concat(o: Arguments) -> Value:
    return shapes.concat(Arguments(o.values, {"tensors": o.given.get("inputs"), "dim": o.integer("axis")}))


def _split(o: Arguments) -> Value:
    x, axis = _tensor(o, 0), o.integer("axis", 0)
    sizes = _axes(o, 1, "split")
    if sizes is not None:
        return shapes.split(Arguments(o.values, {"self": x, "split_sizes": sizes, "dim": axis}))
    return shapes.chunk(Arguments(o.values, {"self": x, "chunks": o.integer("num_outputs"), "dim": axis}))


def _with_axes(meaning: Meaning) -> Meaning:
    """An operator with dims by either way."""

    def translated(o: Arguments) -> Value:
        given: dict[str, Value] = {"self": _input(o, 0), "keepdim": o.integer("keepdims", 1)}
        axes = _axes(o, 1)
        if axes is None and o.integer("noop_with_empty_axes", 0):
            return _input(o, 0)
        return meaning(Arguments(o.values, given if axes is None else {**given, "dim": axes}))

    return translated


def _transpose(o: Arguments) -> Value:
    x = _tensor(o, 0)
    return o.values.transpose(x, o.integers("perm", tuple(reversed(range(len(x.shape))))))


def _gemm(o: Arguments) -> Value:
    given = Arguments(o.values, {"a": _input(o, 0), "b": _input(o, 1)})
    a, b = given.expression("a"), given.expression("b")
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise InputError("no product of matrices", got=(a.shape, b.shape))
    a = o.make.transpose(a, (1, 0)) if o.integer("transA", 0) else a
    b = o.make.transpose(b, (1, 0)) if o.integer("transB", 0) else b
    y = o.make.scale(o.make.product(a, b), o.figure("alpha", 1.0))
    if _input(o, 2) is None or o.figure("beta", 1.0) == 0.0:
        return y
    bias = Arguments(o.values, {"c": _input(o, 2)}).tensor("c")
    scaled = numbers.times(o, bias, np.asarray(o.figure("beta", 1.0))) if o.figure("beta", 1.0) != 1.0 else bias
    return numbers.total(o, y, scaled)


def _padding(o: Arguments) -> tuple[int, int]:
    """Of both dims of an image, before as behind."""
    automatic = o.given.get("auto_pad", "NOTSET")
    if automatic not in ("NOTSET", "VALID", ""):
        raise InputError("a padding by name", got=automatic, expected="figures")
    pads = o.integers("pads", (0, 0, 0, 0))
    if len(pads) != 4 or pads[:2] != pads[2:]:
        raise InputError("a padding that differs between sides", got=pads, expected="four figures, before as behind")
    return pads[0], pads[1]


def _windows(o: Arguments) -> dict[str, Value]:
    return {
        "stride": o.integers("strides", (1, 1)),
        "padding": _padding(o),
        "dilation": o.integers("dilations", (1, 1)),
    }


def _conv(o: Arguments) -> Value:
    operands = {"input": _input(o, 0), "weight": _input(o, 1), "bias": _input(o, 2), "groups": o.integer("group", 1)}
    return network.conv2d(Arguments(o.values, {**operands, **_windows(o)}))


def _pool(meaning: Meaning) -> Meaning:
    def translated(o: Arguments) -> Value:
        more: dict[str, Value] = {"kernel_size": o.integers("kernel_shape"), "ceil_mode": o.integer("ceil_mode", 0)}
        counted = {"count_include_pad": bool(o.integer("count_include_pad", 0))}
        return meaning(Arguments(o.values, {"self": _input(o, 0), **_windows(o), **more, **counted}))

    return translated


def _global_average(o: Arguments) -> Value:
    return network.adaptive_avg_pool2d(Arguments(o.values, {"self": _input(o, 0), "output_size": (1, 1)}))


def _batch_norm(o: Arguments) -> Value:
    names = ("input", "weight", "bias", "running_mean", "running_var")
    given = {name: _input(o, place) for place, name in enumerate(names)}
    momentum = 1.0 - o.figure("momentum", 0.9)
    return network.batch_norm(Arguments(o.values, {**given, "eps": o.figure("epsilon", 1e-5), "momentum": momentum}))


def _norm(meaning: Meaning) -> Meaning:
    def translated(o: Arguments) -> Value:
        x = _tensor(o, 0)
        if from_left(o.integer("axis", -1), len(x.shape)) != len(x.shape) - 1:
            raise InputError("a norm over several dims", got=o.integer("axis", -1))
        given = {"input": x, "weight": _input(o, 1), "bias": _input(o, 2), "eps": o.figure("epsilon", 1e-5)}
        return meaning(Arguments(o.values, given))

    return translated


def _cast(o: Arguments) -> Value:
    code = o.integer("to")
    if code not in DTYPES:
        raise InputError("an unknown dtype", got=code)
    return numbers.cast_to(o, _tensor(o, 0), DTYPES[code])


def _constant(o: Arguments) -> Value:
    for name in ("value_int", "value_float"):
        if name in o.given:
            return np.asarray(o.given[name], np.int64 if name == "value_int" else np.float32)
    for name in ("value_ints", "value_floats"):
        if name in o.given:
            return np.asarray(o.given[name], np.int64 if name == "value_ints" else np.float32)
    return _array(o)


def _array(o: Arguments) -> Array:
    """A constant inside a node."""
    found = o.given.get("value")
    if not isinstance(found, tuple) or len(found) != 3 or not isinstance(found[1], tuple):
        raise InputError("a constant without a value")
    name, shape, flat = found
    sizes = Arguments(o.values, {"shape": shape}).integers("shape", ()) if shape else ()
    return np.asarray(flat, str(name)).reshape(sizes)


def _constant_of_shape(o: Arguments) -> Value:
    shape = Arguments(o.values, {"shape": _input(o, 0)}).integers("shape")
    value = _array(o).reshape(-1)[:1] if o.has("value") else np.zeros(1, np.float32)
    return o.values.known(shape, 0, lambda: np.broadcast_to(value.reshape(()), shape))


def _range(o: Arguments) -> Value:
    ends = {name: _input(o, place) for place, name in enumerate(("start", "end", "step"))}
    made = shapes.arange(Arguments(o.values, ends))
    first = ends["start"]
    return made.astype(first.dtype) if isinstance(made, np.ndarray) and isinstance(first, np.ndarray) else made


def _folded(function: Callable[..., Array], kind: str) -> Meaning:
    """An operator of any number of operands."""

    def meaning(o: Arguments) -> Value:
        parts = Arguments(o.values, {"tensors": o.given.get("inputs")}).tensors("tensors")
        if not parts:
            raise InputError("no operands")
        found = parts[0]
        for part in parts[1:]:
            if isinstance(found, Expression) and isinstance(part, Expression):
                found = o.make.binary(kind, found, part)
            elif isinstance(found, Expression) or isinstance(part, Expression):
                raise InputError("a constant where a tensor is computed on")
            else:
                found = o.values.elementwise(function, found, part)
        return found

    return meaning


def _clip(o: Arguments) -> Value:
    low, high = (Arguments(o.values, {"bound": _input(o, place)}) for place in (1, 2))
    x = _tensor(o, 0)
    if isinstance(x, Expression):
        if low.figure("bound", -math.inf) == 0.0 and high.figure("bound", 6.0) == 6.0 and high.has("bound"):
            return numbers.relu6(Arguments(o.values, {"self": x}))
        raise InputError("a clip other than a ReLU6")
    return o.values.elementwise(np.clip, x, np.asarray(low.array("bound")), np.asarray(high.array("bound")))


def _attention(o: Arguments) -> Value:
    names = ("query", "key", "value", "attn_mask")
    given = {name: _input(o, place) for place, name in enumerate(names)}
    more = {"is_causal": bool(o.integer("is_causal", 0)), **({"scale": o.figure("scale")} if o.has("scale") else {})}
    if o.figure("softcap", 0.0) or any(_input(o, place) is not None for place in (4, 5)):
        raise InputError("attention with a cache or a bound")
    return network.attention(Arguments(o.values, {**given, **more}))


def _flatten(o: Arguments) -> Value:
    x = _tensor(o, 0)
    axis = o.integer("axis", 1)
    axis += len(x.shape) if axis < 0 else 0
    if axis != 1 or len(x.shape) < 2:
        raise InputError("flattened from another dim", got=axis, expected="1")
    return shapes.flatten(Arguments(o.values, {"self": x, "start_dim": 1}))


def _trilu(o: Arguments) -> Value:
    given = {"self": _input(o, 0), "diagonal": _input(o, 1)}
    return shapes.triangle(upper=bool(o.integer("upper", 1)))(Arguments(o.values, given))


def _swish(o: Arguments) -> Value:
    if o.figure("alpha", 1.0) != 1.0:
        raise InputError("a Swish with a factor", got=o.figure("alpha"))
    return unary("silu")(Arguments(o.values, {"self": _input(o, 0)}))


_X, _PAIR = ("self",), ("self", "other")
_COMPARED = {
    **{"Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater},
    **{"GreaterOrEqual": np.greater_equal, "And": np.logical_and, "Or": np.logical_or},
}
_ROWS: dict[str, Meaning] = {
    **{name: row(known(function, "self", "other"), *_PAIR) for name, function in _COMPARED.items()},
    **{"Add": row(numbers.add, *_PAIR), "Sub": row(numbers.sub, *_PAIR), "Mul": row(numbers.mul, *_PAIR)},
    **{"Div": row(numbers.div, *_PAIR), "Pow": row(numbers.power, *_PAIR), "MatMul": row(network.matmul, *_PAIR)},
    **{"Abs": row(unary("abs", np.abs), *_X), "Relu": row(unary("relu"), *_X), "Swish": _swish},
    **{"Sigmoid": row(unary("sigmoid"), *_X), "Tanh": row(unary("tanh", np.tanh), *_X)},
    **{"Exp": row(unary("exp", np.exp), *_X), "Log": row(unary("log", np.log), *_X), "Erf": row(numbers.erf, *_X)},
    **{"Neg": row(unary("neg", np.negative), *_X), "Sqrt": row(unary("sqrt", np.sqrt), *_X)},
    **{"Reciprocal": row(numbers.reciprocal, *_X), "Identity": row(numbers.same, *_X)},
    "IsNaN": row(numbers.is_nan, *_X),
    **{"Cos": row(known(np.cos, "self"), *_X), "Sin": row(known(np.sin, "self"), *_X)},
    **{"Not": row(known(np.logical_not, "self"), *_X), "Gelu": row(numbers.gelu, *_X, approximate="approximate")},
    "Softmax": row(numbers.softmax, *_X, axis="dim"),
    "LogSoftmax": row(numbers.log_softmax, *_X, axis="dim"),
    "Where": row(numbers.where, "condition", "self", "other"),
    "Dropout": row(numbers.dropout, "input", "p", "train"),
    "GatherElements": row(shapes.gather, "self", "index", axis="dim", defaults={"dim": 0}),
    "CumSum": row(shapes.cumsum, "self", "dim"),
    **{"Reshape": _reshape, "Expand": _expand, "Gather": _gather, "GatherND": _gather_nd, "Shape": _shape},
    **{"Slice": _slice, "Concat": _concat, "Split": _split, "Transpose": _transpose, "Flatten": _flatten},
    **{"Unsqueeze": _with_axes(shapes.unsqueeze), "Squeeze": _with_axes(shapes.squeeze), "Trilu": _trilu},
    **{
        f"Reduce{name}": _with_axes(numbers.reduced(f"reduce_{name.lower()}")) for name in ("Mean", "Sum", "Max", "Min")
    },
    **{"Gemm": _gemm, "Conv": _conv, "MaxPool": _pool(network.max_pool2d), "AveragePool": _pool(network.avg_pool2d)},
    **{"GlobalAveragePool": _global_average, "BatchNormalization": _batch_norm, "Attention": _attention},
    **{"LayerNormalization": _norm(network.layer_norm), "RMSNormalization": _norm(network.rms_norm)},
    **{"Cast": _cast, "Constant": _constant, "ConstantOfShape": _constant_of_shape, "Range": _range, "Clip": _clip},
    **{"Max": _folded(np.maximum, "maximum"), "Min": _folded(np.minimum, "minimum")},
}
ONNX: Mapping[str, Meaning] = {f"onnx.{name}": meaning for name, meaning in _ROWS.items()}
