"""Initial parameters: given, or a function of seed and name alone; so every layout starts from the same model."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from strategy.base.errors import InputError
from strategy.graph.graph import Value
from strategy.sbp.tensor import Box

_NORMAL = re.compile(r"normal\(([0-9.eE+-]+)\)")
_CONSTANT = re.compile(r"constant\(([0-9.eE+-]+)\)")


def initial_piece(value: Value, box: Box, *, seed: int) -> NDArray[Any]:
    """The part `box` of a variable as it starts.

    Raises:
        InputError: the variable says no known start.
    """
    whole = np.empty(value.spec.shape, value.spec.dtype.numpy)
    normal, constant = _NORMAL.fullmatch(value.init), _CONSTANT.fullmatch(value.init)
    if value.init in ("zeros", "ones"):
        whole[...] = value.init == "ones"
    elif constant is not None:
        whole[...] = float(constant[1])
    elif normal is not None:
        digest = hashlib.sha256(f"{seed}:{value.name}".encode()).digest()
        key = np.frombuffer(digest[:16], np.uint64)
        whole[...] = Generator(Philox(key=key)).normal(0.0, float(normal[1]), value.spec.shape)
    else:
        expected = "zeros, ones, constant, normal"
        raise InputError("unknown start of a variable", where=value.name, got=value.init, expected=expected)
    return given_piece(value, box, whole)


def given_piece(value: Value, box: Box, whole: NDArray[Any]) -> NDArray[Any]:
    """The part `box` of a variable that starts as `whole`, in the variable's dtype."""
    piece = whole[tuple(slice(begin, end) for begin, end in box)]
    return np.asarray(piece, value.spec.dtype.numpy, order="C")
