"""How acts become launches: which kernel, over which grid, with which arguments; as recorded in launches.txt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from executor.runtime.kernels.gpu.launch import Addresses, Argument, Launch
from executor.runtime.kernels.gpu.program import ELEMENTS, all_parameters
from executor.runtime.kernels.gpu.table import LAUNCHES, launches_of
from strategy.graph.ops import REGISTRY
from strategy.graph.ops.base import Call, Workspace
from strategy.sbp.tensor import DType
from tests.support.cuda_on_host.row_trials import RowTrial, row_kinds, row_trials
from tests.support.cuda_on_host.trials import Trial, kinds, trials

GOLDEN = Path(__file__).parent / "launches.txt"
INTEGERS = {"int": "int32", "Index": "int64", "unsigned long long": "uint64", "float": "float32", "double": "float64"}
STRUCTS = {"Piece": 8 * 23, "Pieces": 8 * 7, "Counts": 8 * 25, "Pointers": 8 * 24, "Terms": 8 * 32, "Steps": 8 * 3}


def fits(argument: Argument, parameter: str, element: DType) -> bool:
    """Whether an argument is what a parameter takes."""
    if not parameter.endswith("*"):
        if isinstance(argument, Addresses):
            return parameter in ("Pointers", "Terms") and 8 * argument.room == STRUCTS[parameter]
        if isinstance(argument, np.void):
            return argument.nbytes == STRUCTS[parameter]
        return isinstance(argument, np.generic) and str(argument.dtype) == INTEGERS[parameter]
    if argument is None:
        return True
    pointed = parameter.removeprefix("const ").removesuffix(" *")
    types = {"void": ("int32", "int64"), "Element": (str(element),), "unsigned char": ("uint8",)}
    return isinstance(argument, np.ndarray) and str(argument.dtype) in types.get(pointed, (INTEGERS.get(pointed),))


def text_of(argument: Argument) -> str:
    if argument is None:
        return "null"
    if isinstance(argument, Addresses):
        return f"{argument.room} addresses ({', '.join(map(text_of, argument.arrays))})"
    if isinstance(argument, np.void):
        return f"struct {np.frombuffer(argument.tobytes(), np.int64).tolist()}"
    if isinstance(argument, np.generic):
        return f"{argument.dtype} {argument}"
    return f"{argument.dtype}{list(argument.shape)}"


def launches(trial: Trial | RowTrial, element: DType) -> tuple[Launch, ...]:
    found = launches_of(trial.kind, trial.call(element))
    assert found is not None
    return found


TRIED: dict[str, Sequence[Trial | RowTrial]] = {
    **{kind: trials(kind) for kind in kinds()},
    **{f"{kind} of rows": row_trials(kind) for kind in row_kinds()},
}


@pytest.mark.parametrize("kind", TRIED)
def test_arguments_are_what_parameters_take(kind: str) -> None:
    known = all_parameters()
    for element in ELEMENTS:
        if kind == "adamw" and element.is_half:
            continue
        for launch in (one for trial in TRIED[kind] for one in launches(trial, element)):
            types = known[launch.kernel]
            assert len(types) == len(launch.arguments)
            wrong = [p for a, p in zip(launch.arguments, types, strict=True) if not fits(a, p, launch.element)]
            assert wrong == [], launch.kernel
            assert launch.element == element
            assert min(launch.grid) >= 1
            assert max(launch.grid[1:]) <= 65535


def test_launches_are_as_recorded() -> None:
    """One line per launch, in bfloat16, or float32 where halves have no kernel; write the file anew by `python -m`."""
    assert recorded() == GOLDEN.read_text()


def recorded() -> str:
    lines = []
    for kind, tried in TRIED.items():
        element = DType.FLOAT32 if kind == "adamw" else DType.BFLOAT16
        for trial in tried:
            for launch in launches(trial, element):
                grid = "x".join(map(str, launch.grid))
                lines.append(f"{kind}: {launch.kernel} {grid} {'; '.join(map(text_of, launch.arguments))}")
    return "\n".join(lines) + "\n"


def test_kinds_of_the_table_are_ops() -> None:
    assert set(LAUNCHES) <= set(REGISTRY)


def one(kind: str, x: np.ndarray, out: np.ndarray) -> tuple[Launch, ...] | None:
    box = tuple((0, size) for size in x.shape)
    return launches_of(kind, Call(np, {}, (x,), (out,), (), (box,), (box,), Workspace(np)))


def test_what_no_kernel_takes_is_left_to_the_array_module() -> None:
    x = np.ones((4, 6), np.float32)
    assert one("silu", x, x.copy()) is not None
    assert one("relu", x, x.copy()) is None
    assert one("silu", x.astype(np.float64), x.astype(np.float64)) is None
    assert one("silu", np.ones((6, 4), np.float32).T, x.copy()) is None
    assert one("cast", x, x.astype(np.int32)) is None


def test_vectors_are_loaded_where_addresses_allow() -> None:
    memory = np.zeros(64, np.float32)
    for begin, expected in ((0, 1), (1, 0), (4, 1)):
        x = memory[begin : begin + 16].reshape(2, 8)
        (launch,) = one("silu", x, np.zeros((2, 8), np.float32)) or ()
        assert launch.arguments[-1] == (expected if memory.ctypes.data % 16 == 0 else launch.arguments[-1])


if __name__ == "__main__":
    GOLDEN.write_text(recorded())
