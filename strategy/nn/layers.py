"""Layers: the modules and functions that models are made of.

Functions take a `label`: the name of the op that gives the result; what leads to it is called `label.something`.
"""

from __future__ import annotations

import math

from strategy.base.errors import InputError
from strategy.graph.graph import Attr, Attrs
from strategy.nn.module import Module, Parameter
from strategy.nn.tracer import Tensor

Pair = tuple[int, int]


class Linear(Module):
    """x @ weight + bias."""

    def __init__(self, inputs: int, outputs: int, *, std: float = 0.02, bias: bool = True) -> None:
        self.weight = Parameter((inputs, outputs), f"normal({std})")
        self.bias = Parameter((outputs,)) if bias else None

    def forward(self, *inputs: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        (x,) = inputs
        y = x.apply("matmul", "matmul", self.parameter("weight", x))
        return y if self.bias is None else y.apply("bias_add", "add", self.parameter("bias", x))


class Embedding(Module):
    """Rows of a table by index."""

    def __init__(self, rows: int, width: int, *, std: float = 0.02) -> None:
        self.weight = Parameter((rows, width), f"normal({std})")

    def forward(self, *inputs: Tensor) -> Tensor:
        """Integers [...] -> [..., width]."""
        (ids,) = inputs
        return self.parameter("weight", ids).apply("rows", "gather", ids, attrs={"axis": 0})


class Dropout(Module):
    """Zeros elements at a rate, and scales the others up, while `training`."""

    def __init__(self, rate: float, *, seed: int = 0) -> None:
        self.rate = rate
        self.seed = seed
        self.training = True

    def forward(self, *inputs: Tensor) -> Tensor:
        """[...] -> [...]; every use draws another mask."""
        (x,) = inputs
        if not self.training or self.rate == 0:
            return x
        stream = x.tracer.stream(x) % 2**32 + (self.seed << 32)
        return x.apply("dropout", "dropout", attrs={"rate": self.rate, "seed": stream})


class LayerNorm(Module):
    """Layer norm over the last dim, with gain and bias."""

    def __init__(self, width: int, *, epsilon: float = 1e-5) -> None:
        self.weight = Parameter((width,), "ones")
        self.bias = Parameter((width,))
        self.epsilon = epsilon

    def forward(self, *inputs: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        (x,) = inputs
        operands = (x, self.parameter("weight", x), self.parameter("bias", x))
        return x.tracer.apply("norm", "layer_norm", operands, {"epsilon": self.epsilon}, ("mean", "rstd"))[0]


class RmsNorm(Module):
    """RMS norm over the last dim, with a gain."""

    def __init__(self, width: int, *, epsilon: float = 1e-5) -> None:
        self.weight = Parameter((width,), "ones")
        self.epsilon = epsilon

    def forward(self, *inputs: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        (x,) = inputs
        operands = (x, self.parameter("weight", x))
        return x.tracer.apply("norm", "rms_norm", operands, {"epsilon": self.epsilon}, ("rstd",))[0]


class GroupNorm(Module):
    """Group norm over channels and positions, with a gain and bias per channel."""

    def __init__(self, groups: int, channels: int, *, epsilon: float = 1e-5) -> None:
        self.weight = Parameter((channels,), "ones")
        self.bias = Parameter((channels,))
        self.groups = groups
        self.epsilon = epsilon

    def forward(self, *inputs: Tensor) -> Tensor:
        """[n, channels, ...] -> [n, channels, ...]."""
        (x,) = inputs
        operands = (x, self.parameter("weight", x), self.parameter("bias", x))
        attrs: Attrs = {"groups": self.groups, "epsilon": self.epsilon}
        return x.tracer.apply("norm", "group_norm", operands, attrs, ("mean", "rstd"))[0]


RUNNING = ("running_mean", "running_variance")
"""Attributes of a batch norm that are no trained parameters, but statistics."""


class BatchNorm(Module):
    """Batch norm per channel, by the statistics of the whole micro-batch while `training`, else by the running ones.

    The statistics are sums over the batch before they are used, so that every layout of the batch normalises alike.
    The running ones follow those of all micro-batches together once per step; the running variance is unbiased.
    """

    def __init__(self, channels: int, *, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        self.weight = Parameter((channels,), "ones")
        self.bias = Parameter((channels,))
        self.running_mean = Parameter((channels,))
        self.running_variance = Parameter((channels,), "ones")
        self.epsilon = epsilon
        self.momentum = momentum
        self.training = True

    def forward(self, *inputs: Tensor) -> Tensor:
        """[n, channels, ...] -> [n, channels, ...]."""
        (x,) = inputs
        scale = (self.parameter("weight", x), self.parameter("bias", x))
        running = [self.parameter(attribute, x) for attribute in RUNNING]
        if not self.training:
            return x.apply("norm", "batch_norm", *running, *scale, attrs={"epsilon": self.epsilon, "count": 0})
        count = math.prod(x.shape) // x.shape[1]
        others = tuple(dim for dim in range(len(x.shape)) if dim != 1)
        total = x.apply("sum", "reduce_sum", attrs={"axes": others, "keepdims": 0})
        mean = total.apply("mean", "scale", attrs={"factor": 1.0 / count})
        squares, counted = x.tracer.apply("squares", "square_deviations", (x, mean), labels=("count",))
        variance = squares.apply("variance", "scale", attrs={"factor": 1.0 / count})
        attrs: Attrs = {"epsilon": self.epsilon, "count": count}
        y = x.apply("norm", "batch_norm", mean, variance, *scale, attrs=attrs)
        moment = variance.apply("moment", "second_moment", mean, running[0])
        terms = {"means": mean, "moments": moment, "count": counted}
        attrs = {"momentum": self.momentum, "count": count}
        x.tracer.follow(y, "running", "running_average", terms, running, attrs)
        return y


class Conv2d(Module):
    """Convolution of images, with a bias per channel or without; started as by He et al. 2015 (arXiv:1502.01852)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Pair,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        if inputs % groups or outputs % groups:
            raise InputError("the channels are no multiple of the groups", got=(inputs, outputs, groups))
        fan_in = inputs // groups * kernel[0] * kernel[1]
        self.weight = Parameter((outputs, inputs // groups, *kernel), f"normal({math.sqrt(2 / fan_in):.6f})")
        self.bias = Parameter((outputs,)) if bias else None
        self.stride = stride
        self.padding = padding
        self.groups = groups

    def forward(self, *inputs: Tensor) -> Tensor:
        """[n, inputs, h, w] -> [n, outputs, p, q]."""
        (x,) = inputs
        attrs: Attrs = {"stride": self.stride, "padding": self.padding, "groups": self.groups}
        y = x.apply("conv", "conv2d", self.parameter("weight", x), attrs=attrs)
        if self.bias is None:
            return y
        return y.apply("bias_add", "add", self.parameter("bias", x).reshape("bias_column", (y.shape[1], 1, 1)))


def set_training(module: Module, training: bool) -> None:
    """Whether a module and all below it trace as in training (batch statistics, dropout) or as in evaluation."""
    for member, _ in module.walk():
        if "training" in vars(member):
            vars(member)["training"] = training


def max_pool(x: Tensor, label: str, kernel: Pair, stride: Pair, padding: Pair = (0, 0)) -> Tensor:
    """The largest pixel of every window: [n, c, h, w] -> [n, c, p, q]."""
    return x.apply(label, "max_pool", attrs={"kernel": kernel, "stride": stride, "padding": padding})


def avg_pool(x: Tensor, label: str, kernel: Pair, stride: Pair, padding: Pair = (0, 0)) -> Tensor:
    """The mean of every window, padding counted as zeros: [n, c, h, w] -> [n, c, p, q]."""
    return x.apply(label, "avg_pool", attrs={"kernel": kernel, "stride": stride, "padding": padding})


def global_avg_pool(x: Tensor, label: str) -> Tensor:
    """The mean of every channel of an image: [n, c, h, w] -> [n, c]."""
    _, _, h, w = x.shape
    return x.apply(label, "reduce_mean", attrs={"axes": (2, 3), "keepdims": 0, "count": h * w})


def rotary(
    x: Tensor, label: str, *, base: float = 10000.0, frequencies: tuple[float, ...] = (), scale: float = 1.0
) -> Tensor:
    """Heads [b, s, h, d] turned by their positions, dims i and i + d/2 in pairs; see the op of that name.

    Args:
        x: the heads.
        label: the op's name.
        base: of the angles.
        frequencies: in place of those of the base.
        scale: of what turns.
    """
    given = _given(frequencies=frequencies, scale=0.0 if scale == 1.0 else scale)
    return x.apply(label, "rotary", attrs={"base": base, "reverse": 0, **given})


def gated(gate: Tensor, up: Tensor, label: str, *, activation: str = "silu") -> Tensor:
    """activation(gate) * up (Shazeer 2020, arXiv:2002.05202): with silu, SwiGLU."""
    return gate.apply(f"{label}.{activation}", activation).apply(label, "mul", up)


def packed_attention(qkv: Tensor, label: str, *, causal: bool, visible: Tensor | None = None) -> Tensor:
    """Attention over a packed projection [b, s, g, r + 2, d], r queries to a key and a value: -> [b, s, g r, d].

    `visible` [b, s] hides the keys at which it is zero.
    """
    mask = () if visible is None else (visible,)
    return qkv.tracer.apply(label, "attention", (qkv, *mask), {"causal": int(causal)}, ("lse",))[0]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    label: str,
    *,
    causal: bool,
    visible: Tensor | None = None,
    sinks: Tensor | None = None,
    window: int = 0,
    scale: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """Attention of q[b, s, h, d] over k[b, t, g, d], v[b, t, g, e], h a multiple of g: -> [b, s, h, e].

    What sinks[h], window, scale and softcap are, the op says; 0 is none. Over split positions, queries are split and
    keys and values gathered, or positions exchanged for heads; see `passes.ring_attention` for keys and values that go
    round a ring.
    """
    more = tuple(operand for operand in (visible, sinks) if operand is not None)
    given = _given(sinks=int(sinks is not None), window=window, scale=scale, softcap=softcap)
    return q.tracer.apply(label, "attention", (q, k, v, *more), {**_heads(q, k, causal), **given}, ("lse",))[0]


def _given(**attrs: Attr) -> Attrs:
    """Attributes that say something."""
    return {key: value for key, value in attrs.items() if value}


def _heads(q: Tensor, k: Tensor, causal: bool) -> Attrs:
    return {"causal": int(causal), "group": q.shape[2] // k.shape[2]}
