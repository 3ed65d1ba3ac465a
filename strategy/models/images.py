"""What models that classify images share: their batch, and the steps that they are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from strategy.base.errors import InputError
from strategy.models.base import Integers, RandomFeatures, Source
from strategy.nn.layers import RUNNING, BatchNorm, Conv2d, Pair
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor
from strategy.sbp.tensor import DType, TensorSpec

COLOURS = 3


class ImageBatches:
    """Base of the dimensions of a model of square images of `side` pixels, each of one of `classes`."""

    __slots__ = ()

    side: int
    classes: int

    @property
    def tokens_per_sample(self) -> int:
        """A sample is one image."""
        return 1

    @property
    def batch(self) -> Mapping[str, Source]:
        """Images that resemble those of the same class."""
        return {"images": RandomFeatures("labels"), "labels": Integers(self.classes)}

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        """images[b, colour, row, column] and labels[b]."""
        return {
            "images": TensorSpec((micro_batch, COLOURS, self.side, self.side)),
            "labels": TensorSpec((micro_batch,), DType.INT32),
        }


@dataclass(frozen=True, slots=True)
class ImageModel(ImageBatches):
    """Base of the dimensions of a convolutional model; a subclass adds its own, `layers` and `module`."""

    side: int
    classes: int

    def __post_init__(self) -> None:
        for field in fields(self):
            found = getattr(self, field.name)
            sizes = found if isinstance(found, tuple) else (found,)
            if not sizes or any(type(size) is int and size < 1 for size in sizes):
                where = f"{type(self).__name__.removesuffix('Config')}: {field.name}"
                raise InputError("not a size", where=where, got=found, expected="at least 1")

    @property
    def parameters(self) -> int:
        """Number of trained elements: all but the running statistics of batch norm."""
        held = (pair for member, _ in self.module().walk() for pair in member.own_parameters())
        return sum(math.prod(parameter.shape) for attribute, parameter in held if attribute not in RUNNING)

    def module(self) -> Module:
        """The model, to be traced; subclasses write it."""
        raise NotImplementedError(f"{type(self).__name__}.module")


class ConvNorm(Module):
    """Convolution without bias, batch norm, and a ReLU unless it is left to the caller."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Pair,
        *,
        stride: int = 1,
        padding: Pair = (0, 0),
        epsilon: float = 1e-5,
        relu: bool = True,
    ) -> None:
        self.conv = Conv2d(inputs, outputs, kernel, stride=(stride, stride), padding=padding, bias=False)
        self.norm = BatchNorm(outputs, epsilon=epsilon)
        self.relu = relu

    def forward(self, *inputs: Tensor) -> Tensor:
        """[n, inputs, h, w] -> [n, outputs, p, q]."""
        y: Tensor = self.norm(self.conv(inputs[0]))
        return y.apply("relu", "relu") if self.relu else y
