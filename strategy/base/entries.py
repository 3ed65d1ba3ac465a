"""Entries of object code: what Python calls, with which operands, and what an entry tells.

Operands are named by annotations: `Vector`, `Matrix`, `Indices`, np.float32, int and bool. Entries read NumPy's arrays
themselves, by the binary interface that extension modules are built on, and check them first: addresses that Python
asks an array for cost more than the call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

PYTHON = frozenset(
    {
        *("PyErr_Occurred", "PyEval_RestoreThread", "PyEval_SaveThread", "PyFloat_AsDouble", "PyLong_AsLongLong"),
        *("PyLong_FromLong", "PyObject_IsTrue"),
    }
)
LIBRARY = PYTHON | {"memcpy", "memmove", "memset", "floorf", "sqrtf"}
"""What code may call, since every process of Python has it. LLVM ends the process where it finds no such function."""

RAISED, WRONG_COUNT = -1, -2
"""What an entry returns that has no position to tell."""


@dataclass(frozen=True)
class Operand:
    """What one argument of an entry is: an array of so many dims, which lies flat and is written to, or a scalar."""

    dtype: str
    dims: int


OPERANDS = {
    "Vector": Operand("float32", 1),
    "Matrix": Operand("float32", 2),
    "Indices": Operand("int64", 1),
    "np.float32": Operand("float32", 0),
    "int": Operand("int64", 0),
    "bool": Operand("boolean", 0),
}
"""By annotation."""
