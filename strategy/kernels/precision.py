"""Precisions of kernels: how wide operands are multiplied and stored, and what is cast before."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class KernelPrecision(StrEnum):
    """A recipe of operands: activations and weights. All but bf16 are given activations of 16 bits, and cast them."""

    BF16 = "bf16"
    FP8 = "fp8"
    """8 bits, one scale per tensor."""
    FP8_BLOCK = "fp8_block"
    """8 bits, a scale per 128 x 128 weights and per 128 activations."""
    NVFP4 = "nvfp4"
    """4 bits, a scale per 16."""
    W4A8 = "w4a8_mxfp4_mxfp8"
    """Weights of 4 bits and activations of 8, a scale per 32."""

    @property
    def multiplied_bits(self) -> int:
        """Width at which the tensor cores multiply: that of the wider operand."""
        return {"bf16": 16, "nvfp4": 4}.get(self.value, 8)

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight; scales are left out."""
        return {"bf16": 2.0, "nvfp4": 0.5, "w4a8_mxfp4_mxfp8": 0.5}.get(self.value, 1.0)

    @property
    def operand_bytes(self) -> float:
        """Bytes of an activation as it is multiplied."""
        return {"bf16": 2.0, "nvfp4": 0.5}.get(self.value, 1.0)

    @property
    def casts(self) -> bool:
        """Whether activations are cast by kernels of their own before they are multiplied."""
        return self is not KernelPrecision.BF16
