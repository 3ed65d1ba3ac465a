"""What the rest of sbplan knows of a model: its size, its module, and what a batch of it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from strategy.nn.module import Module
from strategy.sbp.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids of consecutive tokens of a text, all in [0, below); `shift` places after where the sample begins.

    Labels have a shift of 1.
    """

    below: int
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Integers:
    """Ids or classes, uniform in [0, below)."""

    below: int


@dataclass(frozen=True, slots=True)
class RandomFeatures:
    """Figures of mean 0 and variance 1.

    `label` names the input [samples] that holds the samples' classes: samples of a class then resemble one another, so
    that there is something to learn. Without it they are noise.
    """

    label: str = ""


Source = Tokens | Integers | RandomFeatures
"""What fills one input of a model."""


class Model(Protocol):
    """The dimensions of one model: a frozen, slotted dataclass of numbers, bools, strings and tuples of numbers."""

    def __hash__(self) -> int:
        """Equal dimensions are one model."""

    @property
    def layers(self) -> int:
        """Repeated layers (members of its largest `Layers`): the most pipeline stages that it can have; at least 1."""

    @property
    def parameters(self) -> int:
        """Number of trained elements, by a formula: what the authors publish."""

    @property
    def tokens_per_sample(self) -> int:
        """What a sample counts when tokens per second are told: its tokens, or 1 where there are none."""

    @property
    def batch(self) -> Mapping[str, Source]:
        """Input -> what fills it."""

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        """Inputs of the module in the order of its `forward`; the first dim of each is that of the samples.

        Floating-point ones are declared as float32 and take the dtype of the training.
        """

    def module(self) -> Module:
        """A module whose `forward(*inputs)` gives the summed loss and the count that it sums over, both scalars."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A model with its published dimensions, and the samples per step that its authors trained it with."""

    model: Model
    global_batch: int


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one kind. `model` is their class, which plan files name by `name`."""

    name: str
    model: type[Any]
    presets: Mapping[str, Preset]
