"""Loops are the functions that they are made of, and load the compiler once they are worth it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from strategy.base.compiled import WORTH, CompiledLoop, compiled, in_place

ROOT = Path(__file__).parents[3]


@in_place
def halve(numbers: npt.NDArray[np.int64], at: int) -> None:
    numbers[at] //= 2


@compiled
def halve_all(numbers: npt.NDArray[np.int64]) -> int:
    for at in range(numbers.size):
        halve(numbers, at)
    return numbers.size


def test_a_loop_that_calls_another_is_the_same_compiled_and_interpreted() -> None:
    ours, theirs = np.arange(10), np.arange(10)
    assert halve_all(ours) == halve_all.interpreted(theirs) == 10
    assert ours.tolist() == theirs.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert halve_all.__name__ == "halve_all"


def test_few_turns_are_interpreted_many_are_compiled_also_one_by_one() -> None:
    loop = CompiledLoop(lambda number: number + 1)
    half = WORTH // 2
    assert loop.worth(half)(1) == loop.worth(half)(1) == 2
    assert loop.worth(0) is loop.interpreted
    assert loop.worth(1) is loop
    at_once = CompiledLoop(lambda: 0)
    assert at_once.worth(WORTH + 1) is at_once


def test_what_is_loaded_is_not_interpreted_any_more() -> None:
    loop = CompiledLoop(lambda number: number + 1)
    assert loop(1) == 2
    assert loop.worth(0) is loop


def test_short_loops_of_one_process_load_no_compiler() -> None:
    program = (
        "import sys; from strategy.layout.makespan import *; from strategy.layout.schedule import Schedule\n"
        "one = np.ones((2, 1), np.int64)\n"
        "times = PipelineTimes.of_passes(one, one, one)\n"
        "print([makespan_ns(schedule, 4, times) for schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B)])\n"
        "print(sorted({'numba', 'llvmlite', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "[]", done.stderr
