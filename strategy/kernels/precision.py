"""Precisions of kernels: how wide operands are multiplied and stored, and what is cast before."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class KernelPrecision(StrEnum):
    """A recipe of operands: activations and weights. All narrower than 16 bits are given 16, and cast them."""

    SINGLE = "single"
    """32 bits, as CUDA's own cores or TF32 multiply them; nobody measured it, and it has the shares of bf16."""
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
        return {"single": 32, "bf16": 16, "nvfp4": 4}.get(self.value, 8)

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight; scales are left out."""
        return {"single": 4.0, "bf16": 2.0, "nvfp4": 0.5, "w4a8_mxfp4_mxfp8": 0.5}.get(self.value, 1.0)

    @property
    def operand_bytes(self) -> float:
        """Bytes of an activation as it is multiplied."""
        return {"single": 4.0, "bf16": 2.0, "nvfp4": 0.5}.get(self.value, 1.0)

    @property
    def given_bytes(self) -> float:
        """Bytes of an activation as it is given, and of a result."""
        return 4.0 if self is KernelPrecision.SINGLE else 2.0

    @property
    def casts(self) -> bool:
        """Whether activations are cast by kernels of their own before they are multiplied."""
        return self.multiplied_bits < 16
