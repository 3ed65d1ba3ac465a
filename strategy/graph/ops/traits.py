"""Traits: what the rest of sbplan may know of an op, other than its kind.

Costs, precision, recomputing, offload, tiling, ring attention and ZeRO ask for these, never for a kind: so a new op is
one file, and is right everywhere by what it says of itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from strategy.sbp.placement import Space


class Gemm(StrEnum):
    """Which routine of a BLAS computes a matrix product: how much of the peak rate it reaches differs."""

    SINGLE = "single"
    BATCHED = "batched"
    """Many products of one shape."""
    GROUPED = "grouped"
    """Many products, each with rows of its own number."""


class Operands(StrEnum):
    """Which operand a matrix product transposes, in BLAS's letters; of a linear map y = x w, what it computes."""

    NN = "nn"
    """y = x w: the map."""
    NT = "nt"
    """dx = dy w': the gradient of its input."""
    TN = "tn"
    """dw = x' dy: the gradient of its weight, whose depth are the rows of all samples."""


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix product: FLOPs at the rate that its shape reaches.

    Attributes:
        gemm: the routine.
        operands: which one is transposed; NN where attributes say it.
        batch_dims: whether all dims of the output but the last two count products at once; else they are rows.
        blocks: whether operands are codes with a scale per block.
    """

    gemm: Gemm = Gemm.SINGLE
    operands: Operands = Operands.NN
    batch_dims: bool = False
    blocks: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused attention (queries, keys and values to their mixture in one act): FLOPs at the rate of such kernels.

    Attributes:
        block: whether it works on one block of keys and values of a ring; else on all of them.
        gradient: whether it is the gradient.
    """

    block: bool = False
    gradient: bool = False


@dataclass(frozen=True, slots=True)
class Convolution:
    """Convolution or one of its gradients: FLOPs at the rate of such kernels.

    Attributes:
        filters: which tensor holds the filters or their gradient, counted among inputs, then outputs.
    """

    filters: int


@dataclass(frozen=True, slots=True)
class FlopBound:
    """FLOPs at the full rate of matrix products, of no one shape."""


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """Bytes at the rate of the device's memory; FLOPs cost nothing."""


MEMORY_BOUND = MemoryBound()


@dataclass(frozen=True, slots=True)
class Movement:
    """Bytes over the link between a device and its host.

    Attributes:
        to: the memory that the tensor is brought to.
    """

    to: Space


CostClass = Product | Attention | Convolution | FlopBound | MemoryBound | Movement
"""What the time of an op is bound by."""


def counts_flop(cost: CostClass) -> bool:
    """Whether the time of an op follows its FLOPs; else it follows its bytes."""
    return isinstance(cost, Product | Attention | Convolution | FlopBound)


@dataclass(frozen=True, slots=True)
class Fusion:
    """Two ops that an op does at once: `then(first(x, ...), other)`, or `then(other, first(x, ...))`.

    The op reads what `first` reads, then the other; its attributes are those of `first`.
    """

    first: str
    then: str


class PrecisionClass(StrEnum):
    """What an op of a forward pass computes in under mixed precision (Micikevicius et al. 2018, arXiv:1710.03740)."""

    HALF = "half"
    """16-bit operands, accumulated in float32."""
    SINGLE = "single"
    """Float32: sums over many elements, powers."""
    FOLLOWS = "follows"
    """As what it reads is."""
    CONVERTS = "converts"
    """What it says itself: a conversion between dtypes."""


class RecomputeClass(StrEnum):
    """What an op of a forward pass is to selective recompute (Korthikanti et al. 2022, arXiv:2205.05198, section 5).

    What lies inside of attention, from the scores to the mixture, is dropped.
    """

    ATTENTION = "attention"
    """All of attention in one act: its output is dropped."""
    SCORES = "scores"
    """A product that may be the scores of attention: begins and ends its inside."""
    SOFTMAX = "softmax"
    """Turns scores into probabilities; behind another product, it is no attention."""
    PRODUCT = "product"
    """Another product: ends the inside of attention as well."""
    BETWEEN = "between"
    """Dropped where it lies inside of attention."""

    @property
    def is_product(self) -> bool:
        """Whether the inside of attention ends here."""
        return self in (RecomputeClass.SCORES, RecomputeClass.PRODUCT)
