"""The table: every operator of ATen that is known, and what it means. ONNX's rows are in `onnx_operators`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from strategy.models.imported import network_operators as network
from strategy.models.imported import operators as numbers
from strategy.models.imported import shape_operators as shapes
from strategy.models.imported.onnx_operators import ONNX
from strategy.models.imported.operators import Meaning, known, unary
from strategy.models.imported.values import Value, Values


def _comparison(function: Any) -> Meaning:
    return known(function, "self", "other")


def _integers(function: Any) -> Meaning:
    """An operator of Python on sizes."""

    def meaning(o: numbers.Arguments) -> Value:
        return int(function(o.integer("a"), o.integer("b")))

    return meaning


def _check(o: numbers.Arguments) -> Value:
    """A size that was checked where the program was exported."""
    return None


_ATEN: Mapping[str, Meaning] = {
    **dict.fromkeys(("abs", "abs_"), unary("abs", np.abs)),
    **dict.fromkeys(("relu", "relu_"), unary("relu")),
    **dict.fromkeys(("silu", "silu_"), unary("silu")),
    **dict.fromkeys(("sigmoid", "sigmoid_"), unary("sigmoid")),
    **dict.fromkeys(("tanh", "tanh_"), unary("tanh", np.tanh)),
    **dict.fromkeys(("hardtanh", "hardtanh_", "relu6", "relu6_"), numbers.relu6),
    **dict.fromkeys(("add", "add_", "__add__"), numbers.add),
    **dict.fromkeys(("sub", "sub_"), numbers.sub),
    **dict.fromkeys(("mul", "mul_"), numbers.mul),
    **dict.fromkeys(("div", "div_"), numbers.div),
    **dict.fromkeys(("dropout", "dropout_", "feature_dropout"), numbers.dropout),
    **dict.fromkeys(("to", "_to_copy", "type_as"), numbers.cast),
    **dict.fromkeys(("contiguous", "clone", "detach", "detach_", "alias", "lift_fresh_copy", "positive"), numbers.same),
    **dict.fromkeys(("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size"), _check),
    **dict.fromkeys(("__and__", "logical_and", "bitwise_and"), _comparison(np.logical_and)),
    **dict.fromkeys(("__or__", "logical_or", "bitwise_or"), _comparison(np.logical_or)),
    **dict.fromkeys(("logical_not", "bitwise_not"), known(np.logical_not, "self")),
    **{"eq": _comparison(np.equal), "ne": _comparison(np.not_equal), "lt": _comparison(np.less)},
    **{"le": _comparison(np.less_equal), "gt": _comparison(np.greater), "ge": _comparison(np.greater_equal)},
    **{"cos": known(np.cos, "self"), "sin": known(np.sin, "self"), "cumsum": shapes.cumsum, "diff": shapes.diff},
    **{"exp": unary("exp", np.exp), "log": unary("log", np.log), "neg": unary("neg", np.negative)},
    **{"sqrt": unary("sqrt", np.sqrt), "rsqrt": unary("rsqrt", lambda x: 1 / np.sqrt(x)), "square": unary("square")},
    **{"erf": numbers.erf, "isnan": numbers.is_nan, "where": numbers.where, "gelu": numbers.gelu, "rsub": numbers.rsub},
    **{"pow": numbers.power, "reciprocal": numbers.reciprocal, "mean": numbers.reduced("reduce_mean")},
    **{
        "sum": numbers.reduced("reduce_sum"),
        "amax": numbers.reduced("reduce_max"),
        "amin": numbers.reduced("reduce_min"),
    },
    **dict.fromkeys(("softmax", "_softmax"), numbers.softmax),
    **dict.fromkeys(("log_softmax", "_log_softmax"), numbers.log_softmax),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "_reshape_alias"), shapes.view),
    **{"flatten": shapes.flatten, "unflatten": shapes.unflatten, "unsqueeze": shapes.unsqueeze},
    **{"squeeze": shapes.squeeze, "expand": shapes.expand, "permute": shapes.permute, "transpose": shapes.transpose},
    **dict.fromkeys(("t", "numpy_T"), shapes.matrix_transpose),
    **{"slice": shapes.cut, "select": shapes.select, "cat": shapes.concat, "stack": shapes.stack},
    **dict.fromkeys(("split", "split_with_sizes"), shapes.split),
    **{"chunk": shapes.chunk, "sym_size": shapes.size_of, "arange": shapes.arange, "gather": shapes.gather},
    **dict.fromkeys(("full", "full_like", "new_full"), shapes.full),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), shapes.ones),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), shapes.zeros),
    **{"scalar_tensor": shapes.scalar_tensor, "embedding": shapes.embedding, "index": shapes.index},
    **{"tril": shapes.triangle(upper=False), "triu": shapes.triangle(upper=True), "masked_fill": shapes.masked_fill},
    **{"linear": network.linear, "addmm": network.addmm, "conv2d": network.conv2d, "convolution": network.conv2d},
    **dict.fromkeys(("matmul", "mm", "bmm"), network.matmul),
    **{"batch_norm": network.batch_norm, "layer_norm": network.layer_norm, "group_norm": network.group_norm},
    **{"native_layer_norm": network.native_layer_norm, "rms_norm": network.rms_norm},
    **{"max_pool2d": network.max_pool2d, "avg_pool2d": network.avg_pool2d},
    **dict.fromkeys(("adaptive_avg_pool2d", "_adaptive_avg_pool2d"), network.adaptive_avg_pool2d),
    "scaled_dot_product_attention": network.attention,
}
_PYTHON: Mapping[str, Meaning] = {
    "_operator.getitem": shapes.item_of,
    "_operator.mul": _integers(lambda a, b: a * b),
    "_operator.add": _integers(lambda a, b: a + b),
    "_operator.sub": _integers(lambda a, b: a - b),
    "_operator.floordiv": _integers(lambda a, b: a // b if b else 0),
}


def meaning_of(target: str) -> Meaning | None:
    """What an operator means; None of one that is not in the table. Overloads of an ATen operator are one row."""
    if target.startswith("aten."):
        return _ATEN.get(target.split(".")[1])
    return _PYTHON.get(target) or ONNX.get(target)


def known_operators() -> tuple[str, ...]:
    """Every operator in the table."""
    return tuple(sorted((*(f"aten.{name}" for name in _ATEN), *_PYTHON, *ONNX)))


__all__ = ["Values", "known_operators", "meaning_of"]
