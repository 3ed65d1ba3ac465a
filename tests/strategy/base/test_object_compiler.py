"""Object code has the bits of numba's own calls, and calls nothing that a process may lack."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from llvmlite import binding as llvm

from strategy.base.ahead_of_time import ObjectFile, ObjectFunction
from strategy.base.entries import OPERANDS, PYTHON, Indices, Matrix, Vector
from strategy.base.errors import InternalError
from strategy.base.machine_code import dispatcher
from strategy.base.object_compiler import object_code, undefined_symbols


def code_of(function: Callable[..., None]) -> bytes:
    operands = [OPERANDS[form] for name, form in function.__annotations__.items() if name != "return"]
    return object_code({"the.entry": (ObjectFile(__file__, "a test").function(function).dispatcher, operands)})


def called(function: ObjectFunction[..., None]) -> ObjectFunction[..., None]:
    """The function, at code that is not kept."""
    function._home._made = function._home._compiled  # type: ignore[method-assign]
    function._home._kept = lambda: None  # type: ignore[method-assign]
    return function


def mix(x: Matrix, scale: Vector, places: Indices, factor: np.float32, shift: int, doubled: bool, y: Matrix) -> None:
    for row in range(places.size):
        for at in range(x.shape[1]):
            found = x[places[row], at] * scale[at] * factor
            y[row, at] = found * 2 + shift if doubled else np.sqrt(found) + shift


def test_every_kind_of_operand_arrives_and_bits_are_those_of_numba() -> None:
    rng = np.random.default_rng(0)
    x, scale = rng.standard_normal((4, 9)).astype(np.float32), rng.standard_normal(9).astype(np.float32)
    x[1, 2], x[2, 3], scale[4] = np.nan, np.inf, -np.inf
    places = np.array([3, 1, 0, 2, 2])
    ours, theirs = np.zeros((2, 5, 9), np.float32), np.zeros((2, 5, 9), np.float32)
    function = called(ObjectFile(__file__, "a test").function(mix))
    numbas = dispatcher(mix)
    for doubled in (False, True):
        function(x, scale, places, np.float32(0.1), -7, doubled, ours[int(doubled)])
        numbas(x, scale, places, np.float32(0.1), -7, doubled, theirs[int(doubled)])
    assert ours.tobytes() == theirs.tobytes()
    assert np.unique(ours).size > 40


def test_arrays_are_held_no_longer_than_the_call() -> None:
    x, scale, places = np.ones((1, 2), np.float32), np.ones(2, np.float32), np.zeros(1, np.int64)
    function, y = called(ObjectFile(__file__, "a test").function(mix)), x.copy()
    before = [sys.getrefcount(array) for array in (x, scale, places, y)]
    for _ in range(3):
        function(x, scale, places, np.float32(1), 0, True, y)
    assert [sys.getrefcount(array) for array in (x, scale, places, y)] == before


def add_up(x: Vector, times: int) -> None:
    for _ in range(times):
        x[0] = x[0] * np.float32(0.5) + np.float32(1)


def test_the_lock_of_the_interpreter_is_not_held() -> None:
    x, turns = np.zeros(1, np.float32), 0
    function = called(ObjectFile(__file__, "a test").function(add_up))
    function(x, 1)
    thread = threading.Thread(target=lambda: function(x, 10**8))
    thread.start()
    while thread.is_alive():
        turns += 1
    assert x.tolist() == [2]
    assert turns > 1000


def exponential(x: Vector) -> None:
    for at in range(x.size):
        x[at] = np.exp(x[at])


def test_code_that_calls_what_not_every_process_has_is_refused() -> None:
    with pytest.raises(InternalError, match="what not every process has: "):
        code_of(exponential)


def test_what_code_calls_is_read_from_it() -> None:
    code = code_of(add_up)
    assert set(undefined_symbols(code)) == PYTHON - {"PyFloat_AsDouble", "PyObject_IsTrue"}
    assert "the.entry" not in set(undefined_symbols(code))
    assert llvm.ObjectFileRef.from_data(code) is not None
    with pytest.raises(InternalError, match="cannot be read"):
        list(undefined_symbols(b"\xcf\xfa\xed\xfe"))


def refusing(x: Vector) -> None:
    if x[0] < 0:
        raise ValueError("negative")


def test_a_function_that_raises_is_an_error() -> None:
    function = called(ObjectFile(__file__, "a test").function(refusing))
    function(np.ones(1, np.float32))
    with pytest.raises(InternalError, match="machine code of refusing raised an error"):
        function(-np.ones(1, np.float32))


def test_functions_without_an_entry_are_part_of_those_that_call_them() -> None:
    file = ObjectFile(__file__, "a test")

    def less(number: np.float32) -> np.float32:
        return number - np.float32(1)

    inner = file.function(less)

    def count_down(x: Vector) -> None:
        for at in range(x.size):
            x[at] = inner(x[at])

    assert set(file.entries) == set()
    function, x = called(file.function(count_down)), np.ones(3, np.float32)
    function(x)
    assert x.tolist() == [0, 0, 0]
    assert set(file.entries) == {"test_object_compiler.count_down"}
