"""Kill -9 of a process that saves a checkpoint: all that has a checkpoint's name is whole, and the next save works.

Half of the kills come at a call: the process ends itself at the nth call that the save makes, counted in Python and in
C, so that the moments between two writes are met and can be met again. The others come from outside after a random
time, for what happens inside a write.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from executor.checkpoint import TensorPart, load, open_checkpoint
from executor.checkpoint.manifest import parse_name
from strategy.base.errors import InputError
from tests.campaigns.outcome import Outcome
from tests.executor.test_checkpoint import pieces_of, save_on_all, tensors_of

QUOTAS = {
    "at a call": 0.3,
    "at a time": 0.3,
    "several ranks": 0.3,
    "draft": 0.3,
    "half a shard": 0.02,
    "before the new one": 0.3,
    "after the new one": 0.01,
}
FEW, MANY = 40, 20_000
"""Rows of the largest tensor: few where each call is counted, many where the kill is to meet a write."""


def run(cases: int, seed: int) -> Outcome:
    """Kill `cases` saves."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        exercised: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            outcome.add(f"kill {number}", check(Path(folder), number, exercised), exercised)
    return outcome


def check(folder: Path, number: int, exercised: list[str]) -> Iterator[str]:
    """Everything that a kill of the save of step 2 leaves wrong, beside a checkpoint of step 1."""
    rng = random.Random(number)
    ranks = rng.choice((1, 2, 3))
    at_call = number % 2 == 0
    rows = FEW if at_call else MANY
    save_step(folder, 1, rows, ranks)
    _pieces(2, rows, ranks)
    if at_call:
        status = _killed_at_call(folder, rng.randrange(calls(ranks)), rows, ranks)
    else:
        status = _killed_at_time(folder, rng.uniform(0.0, 1.1) * _seconds(ranks), rows, ranks)
    exercised += ["at a call" if at_call else "at a time", *["several ranks"] * (ranks > 1), *_left(folder)]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        yield "the save failed before it was killed"
    yield from _all_whole(folder, rows, (1, 2))
    save_step(folder, 3, rows, ranks)
    yield from _all_whole(folder, rows, (3,))


def save_step(folder: Path, step: int, rows: int, ranks: int) -> None:
    """The checkpoint of a step, by all ranks.

    Raises:
        AssertionError: a rank raised.
    """
    raised = save_on_all(folder, step, _pieces(step, rows, ranks))
    assert raised == [None] * ranks, raised


@functools.cache
def _pieces(step: int, rows: int, ranks: int) -> list[list[TensorPart]]:
    """What the ranks save; made before a save that is killed begins, which then does nothing but save."""
    return pieces_of(tensors_of(step, rows), ranks, {"layer.0.weight": (ranks, 1)})


def _all_whole(folder: Path, rows: int, newest: tuple[int, ...]) -> Iterator[str]:
    """All that is named like a checkpoint holds its step to the last bit, and the newest is one of these steps."""
    for path in sorted(folder.iterdir()):
        name = parse_name(path.name)
        if name is None:
            continue
        try:
            found = open_checkpoint(path)
            held = {key: load(found, key) for key in found.manifest.tensors}
        except InputError as error:
            yield f"{path.name} is unreadable: {error}"
            continue
        wanted = tensors_of(name[0], rows)
        if set(held) != set(wanted) or any(held[key].tobytes() != wanted[key].tobytes() for key in wanted):
            yield f"{path.name} does not hold what was saved"
    last = max((name for path in folder.iterdir() if (name := parse_name(path.name)) is not None), default=(0, 0))
    if last[0] not in newest:
        yield f"the newest is of step {last[0]}, not one of {newest}"


def _left(folder: Path) -> Iterator[str]:
    """What a kill left."""
    drafts = list(folder.glob("*.tmp"))
    names = [path.name for path in drafts[0].iterdir()] if drafts else []
    yield from ["draft"] * len(drafts)
    # A dot begins the name under which the library writes a shard.
    yield from ["half a shard"] * any(name.startswith(".") for name in names)
    yield "after the new one" if (folder / "step-00000002").exists() else "before the new one"


def _in_child(work: Callable[[], None]) -> int:
    """The pid of a process that does the work and ends."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def _killed_at_call(folder: Path, at: int, rows: int, ranks: int) -> int:
    """The status of a save of step 2 that ends itself at a call."""
    count = 0

    def count_calls(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1
            if count > at:
                os.kill(os.getpid(), signal.SIGKILL)

    return os.waitpid(_in_child(lambda: _profiled(count_calls, folder, rows, ranks)), 0)[1]


def _killed_at_time(folder: Path, after_s: float, rows: int, ranks: int) -> int:
    """The status of a save of step 2 that is killed after a time; it was over by then, if that is 0."""
    child = _in_child(lambda: save_step(folder, 2, rows, ranks))
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _profiled(hook: Callable[[FrameType, str, object], None], folder: Path, rows: int, ranks: int) -> None:
    """The save of step 2 with a hook on every call; garbage is not collected meanwhile, which makes calls, too."""
    gc.disable()
    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        save_step(folder, 2, rows, ranks)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


@functools.cache
def calls(ranks: int) -> int:
    """How many calls a save makes that nobody kills: counted in a process of its own, as where they are to be met."""
    count = 0

    def count_calls(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    with tempfile.TemporaryDirectory() as name:
        folder, counted = Path(name) / "checkpoints", Path(name) / "count"
        save_step(folder, 1, FEW, ranks)
        _pieces(2, FEW, ranks)

        def save_and_tell() -> None:
            _profiled(count_calls, folder, FEW, ranks)
            counted.write_text(str(count))

        os.waitpid(_in_child(save_and_tell), 0)
        return int(counted.read_text())


@functools.cache
def _seconds(ranks: int) -> float:
    """How long a save takes that nobody kills."""
    with tempfile.TemporaryDirectory() as folder:
        _pieces(2, MANY, ranks)
        start_s = time.monotonic()
        os.waitpid(_in_child(lambda: save_step(Path(folder), 2, MANY, ranks)), 0)
        return time.monotonic() - start_s
