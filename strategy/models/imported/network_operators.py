"""Operators that networks are made of: products, convolutions, pools, norms, attention."""

from __future__ import annotations

import math

import numpy as np

from strategy.base.errors import InputError
from strategy.models.imported import patterns
from strategy.models.imported.expression import Expression
from strategy.models.imported.foreign import Array
from strategy.models.imported.operators import Arguments, total
from strategy.models.imported.values import Value

MOST_PRODUCTS = 2**30
"""Of figures in one product of matrices that are known."""


def linear(o: Arguments) -> Value:
    """x times the transposed weight, plus a bias."""
    return o.make.linear(o.expression("input"), o.expression("weight"), o.optional("bias"))


def addmm(o: Arguments) -> Value:
    """self + mat1 mat2."""
    if o.figure("alpha", 1.0) != 1.0 or o.figure("beta", 1.0) != 1.0:
        raise InputError("a product and a sum with factors", expected="alpha 1 and beta 1")
    return total(o, o.make.product(o.expression("mat1"), o.expression("mat2")), o.tensor("self"))


def matmul(o: Arguments) -> Value:
    """A product of matrices or stacks of them; of soft-max weights and values, attention."""
    names = ("self", "other") if o.has("other") else ("self", "mat2")
    first, second = (o.tensor(name) for name in names)
    if not isinstance(first, Expression) and not isinstance(second, Expression):
        return _known_product(o, first, second)
    a, b = o.expression(names[0]), o.expression(names[1])
    found = patterns.attention_of(o.make, a, b)
    return o.make.product(a, b) if found is None else found


def _known_product(o: Arguments, a: Array, b: Array) -> Array:
    """The product of two that are known."""
    if not a.ndim or not b.ndim or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise InputError("no product of matrices", got=(a.shape, b.shape))
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *a.shape[-2:-1], *b.shape[-1:])
    if math.prod(shape) * a.shape[-1] > MOST_PRODUCTS:
        raise InputError("a constant that is too large", got=shape)
    return o.values.known(shape, 8, lambda: np.matmul(a, b))


def conv2d(o: Arguments) -> Value:
    """A convolution of images."""
    x, weight, bias = o.expression("input"), o.expression("weight"), o.optional("bias")
    if o.given.get("transposed"):
        raise InputError("a transposed convolution")
    if o.pair("dilation", (1, 1)) != (1, 1):
        raise InputError("a dilated convolution", got=o.pair("dilation", (1, 1)), expected="1")
    if isinstance(o.given.get("padding"), str):
        raise InputError("a padding by name", got=o.given["padding"], expected="figures")
    stride, padding = o.pair("stride", (1, 1)), o.pair("padding", (0, 0))
    y = o.make.op("conv2d", x, weight, stride=stride, padding=padding, groups=o.integer("groups", 1))
    return y if bias is None else o.make.op("add", y, o.make.reshape(bias, (y.shape[1], 1, 1)))


def batch_norm(o: Arguments) -> Value:
    """Batch norm per channel: by the batch's statistics in training, by the running ones in evaluation."""
    names = ("weight", "bias", "running_mean", "running_var")
    operands = tuple(o.expression(name) for name in names)
    if any(one.kind != "parameter" for one in operands):
        raise InputError("a batch norm by what is no parameter")
    x, epsilon = o.expression("input"), o.figure("eps", 1e-5)
    if len(x.shape) < 2 or any(one.shape != (x.shape[1],) for one in operands) or not 0 < epsilon < 1:
        raise InputError("batch norm shapes do not compose", got=(x.shape, *(one.shape for one in operands)))
    return o.make.batch_norm(x, operands, epsilon, o.figure("momentum", 0.1))


def layer_norm(o: Arguments) -> Value:
    """Layer norm over the last dim."""
    x = o.expression("input")
    if o.integers("normalized_shape", x.shape[-1:]) != x.shape[-1:]:
        raise InputError("a norm over several dims", got=o.integers("normalized_shape"))
    return o.make.op("layer_norm", x, o.expression("weight"), o.expression("bias"), epsilon=o.figure("eps", 1e-5))


def native_layer_norm(o: Arguments) -> Value:
    """As layer norm; its statistics are nobody's."""
    return (layer_norm(o), None, None)


def rms_norm(o: Arguments) -> Value:
    """RMS norm over the last dim."""
    x = o.expression("input")
    if o.integers("normalized_shape", x.shape[-1:]) != x.shape[-1:]:
        raise InputError("a norm over several dims", got=o.integers("normalized_shape"))
    return o.make.op("rms_norm", x, o.expression("weight"), epsilon=o.figure("eps", 1.1920929e-07))


def group_norm(o: Arguments) -> Value:
    """Group norm."""
    attrs = {"groups": o.integer("num_groups"), "epsilon": o.figure("eps", 1e-5)}
    return o.make.op("group_norm", o.expression("input"), o.expression("weight"), o.expression("bias"), **attrs)


def max_pool2d(o: Arguments) -> Value:
    """The largest pixel of every window."""
    return _pool(o, "max_pool")


def avg_pool2d(o: Arguments) -> Value:
    """The mean of every window."""
    if not o.given.get("count_include_pad", True) and o.pair("padding", (0, 0)) != (0, 0):
        raise InputError("a mean that leaves out its padding")
    return _pool(o, "avg_pool")


def _pool(o: Arguments, kind: str) -> Value:
    if o.given.get("ceil_mode") or o.pair("dilation", (1, 1)) != (1, 1):
        raise InputError("a pool with ceil_mode or dilation")
    kernel = o.pair("kernel_size", ())
    stride = o.pair("stride", kernel) if o.given.get("stride") != () else kernel
    return o.make.op(kind, o.expression("self"), kernel=kernel, stride=stride, padding=o.pair("padding", (0, 0)))


def adaptive_avg_pool2d(o: Arguments) -> Value:
    """The mean of every part of an image that is cut evenly."""
    x, (rows, columns) = o.expression("self"), o.pair("output_size", (1, 1))
    if len(x.shape) != 4 or min(rows, columns) < 1 or x.shape[2] % rows or x.shape[3] % columns:
        raise InputError("an image that cannot be cut evenly", got=(x.shape, rows, columns))
    if (rows, columns) == (1, 1):
        return o.make.reduce("reduce_mean", x, (2, 3), keep=True)
    if (rows, columns) == x.shape[2:]:
        return x
    kernel = (x.shape[2] // rows, x.shape[3] // columns)
    return o.make.op("avg_pool", x, kernel=kernel, stride=kernel, padding=(0, 0))


def attention(o: Arguments) -> Value:
    """Scaled dot-product attention, with a constant mask or a causal one, or none."""
    q, k, v = o.expression("query"), o.expression("key"), o.expression("value")
    if o.figure("dropout_p", 0.0):
        raise InputError("attention that drops weights out", got=o.figure("dropout_p"), expected="0")
    if len(q.shape) != 4 or len(k.shape) != 4:
        raise InputError("attention over other dims", got=(q.shape, k.shape))
    mask = patterns.Mask(causal=bool(o.given.get("is_causal")))
    if o.has("attn_mask"):
        table = o.tensor("attn_mask")
        if isinstance(table, Expression):
            raise InputError("a mask that depends on the inputs", hint="export the program without an attention mask")
        mask = patterns.mask_of(table, q.shape[2], k.shape[2])
    scale = o.figure("scale", 1.0 / math.sqrt(q.shape[3]))
    return patterns.attention(o.make, q, k, v, mask, scale)
