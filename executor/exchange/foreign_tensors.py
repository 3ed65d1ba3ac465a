"""Tensors of a user's own loop as NumPy arrays over the same memory: NumPy's own, and PyTorch's on the CPU.

PyTorch is only imported where a tensor of it is given.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from executor.runtime.transport.base import HostArray
from strategy.base.errors import InputError


def is_torch(tensor: Any) -> bool:
    """Whether this is a tensor of PyTorch."""
    return hasattr(tensor, "detach") and hasattr(tensor, "untyped_storage")


def as_array(tensor: Any, name: str = "") -> HostArray:
    """The array that a tensor lies in; writing one writes the other.

    Raises:
        InputError: it is neither NumPy's nor PyTorch's, or lies on another device, or has gaps.
    """
    where = f"tensor {name!r}" if name else "tensor"
    if isinstance(tensor, np.ndarray):
        return tensor
    if not is_torch(tensor):
        raise InputError("neither of NumPy nor of PyTorch", where=where, got=type(tensor).__name__)
    if tensor.device.type != "cpu":
        raise InputError("not on the CPU", where=where, got=str(tensor.device), hint="move it with .cpu() first")
    if not tensor.is_contiguous():
        raise InputError("is not contiguous", where=where, hint="pass tensor.contiguous()")
    import torch

    plain = tensor.detach()
    if plain.dtype is torch.bfloat16:
        halves: HostArray = plain.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        return halves
    found: HostArray = plain.numpy()
    return found


def like(tensor: Any, array: HostArray) -> Any:
    """A new array as a tensor of the kind of `tensor`."""
    if not is_torch(tensor):
        return array
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)
