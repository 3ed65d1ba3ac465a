"""Feeds: the same batches, made beside what uses them, no further ahead than their blocks; faults wait their turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.data.feed import BatchesAhead, BatchFeed, ahead
from executor.data.synthetic import BatchLoader
from executor.data.text import read_corpus
from strategy.base.errors import RankFault
from strategy.models import Tokens
from strategy.passes.training import Training
from strategy.program.feed import feed_of
from strategy.program.program import ActKind, Actor, LoadTask, Port, Program, Register, Stream
from strategy.sbp.tensor import DType
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, config_of, corpus, deduced_plan, request, train

TASKS = (
    LoadTask(("ids",), (((0, 2), (0, 8)),)),
    LoadTask(("labels",), (((1, 2), (2, 6)),)),
    LoadTask(("ids",), (((0, 2), (0, 8)),), number=1),
)
SHAPES = ((2, 8), (1, 4), (2, 8))


def loaders(micro_batches: int) -> Program:
    """One rank that loads two inputs, one of them twice."""
    registers = tuple(
        Register(task.inputs[0], 0, shape, DType.INT32) for task, shape in zip(TASKS, SHAPES, strict=True)
    )
    actors = tuple(
        Actor(f"load {task.inputs[0]}", 0, ActKind.LOAD, (), (Port(index),), micro_batches, task=task)
        for index, task in enumerate(TASKS)
    )
    return Program(1, registers, actors, (Stream(0, "load", (0, 1, 2), dynamic=True),), num_micro_batches=micro_batches)


def loader(micro_batches: int) -> BatchLoader:
    shapes = {"ids": (2, 8), "labels": (2, 8)}
    batch = {"ids": Tokens(256), "labels": Tokens(256, 1)}
    return BatchLoader(batch, shapes, corpus(256), seed=3, num_micro_batches=micro_batches)


@settings(max_examples=15)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=4),
    st.integers(0, 2**31),
)
def test_batches_are_the_same_in_whatever_order_loaders_take_them(
    blocks: int, micro_batches: int, runs: list[tuple[int, int]], seed: int
) -> None:
    """Of steps that follow each other, or begin anew elsewhere, as a resumed training does, and one that looks back."""
    rng = np.random.default_rng(seed)
    program, at_once = loaders(micro_batches), loader(micro_batches)
    load = BatchesAhead(program, 0, loader(micro_batches), blocks=blocks, first_step=runs[0][0])
    for first, steps in runs:
        left = [first * micro_batches] * 3
        end = (first + steps) * micro_batches
        while any(number < end for number in left):
            which = int(rng.choice([index for index in (0, 1, 2) if left[index] < end]))
            found, wanted = np.zeros(SHAPES[which], np.int32), np.zeros(SHAPES[which], np.int32)
            load(TASKS[which], left[which], [found]).wait()
            at_once(TASKS[which], left[which], [wanted])
            np.testing.assert_array_equal(found, wanted)
            left[which] += 1


def test_a_feed_is_ahead_by_its_blocks_and_no_further() -> None:
    made: list[int] = []
    program = feed_of(Program(1, (), (Actor("load", 0, ActKind.LOAD),), (Stream(0, "load", (0,), dynamic=True),)), 0)
    idle = threading.Event()

    def read(_: int, number: int) -> int:
        made.append(number)
        return number

    feed = BatchFeed[int, int](program, read, lambda loader, number, raw, before: raw, wake=idle.set)

    def settled() -> list[int]:
        while True:
            idle.clear()
            if not idle.wait(0.3):
                return list(made)

    assert settled() == [0, 1, 2, 3]  # two raw, two decoded
    taken: list[int] = []
    feed.begin(0, 0, taken.append).wait()
    assert settled() == [0, 1, 2, 3, 4]
    assert taken == [0]


@pytest.mark.parametrize("half", ["read", "decode"])
def test_a_fault_comes_in_the_place_of_its_batch(half: str) -> None:
    program = feed_of(Program(1, (), (Actor("load", 0, ActKind.LOAD),), (Stream(0, "load", (0,), dynamic=True),)), 0)

    def fail(number: int) -> int:
        if number == 5:
            raise OSError("no such sector")
        return number

    def read(_: int, number: int) -> int:
        return fail(number) if half == "read" else number

    def decode(_: int, number: int, raw: int, before: int | None) -> int:
        return fail(raw) if half == "decode" else raw

    feed, taken = BatchFeed[int, int](program, read, decode), list[int]()
    for number in range(5):
        feed.begin(0, number, taken.append).wait()
    assert taken == [0, 1, 2, 3, 4]
    with pytest.raises(OSError, match="no such sector"):
        feed.begin(0, 5, taken.append).wait()


def test_making_batches_hides_behind_their_use() -> None:
    """By order, not by time: the next batch is begun while one is used."""
    begun = [threading.Event() for _ in range(8)]

    def batches() -> Iterator[tuple[np.ndarray, int]]:
        array = np.zeros(3)
        for number, event in enumerate(begun):
            event.set()
            array[:] = number  # filled anew: what was given before is a copy
            yield array, number

    for number, (array, told) in enumerate(ahead(batches())):
        assert number + 1 == len(begun) or begun[number + 1].wait(5.0)
        assert told == number
        time.sleep(0.01)
        assert array.tolist() == [number] * 3
    assert number == 7


def test_what_making_a_batch_raises_comes_in_its_place_with_its_number() -> None:
    def batches() -> Iterator[int]:
        yield from (1, 2)
        raise ValueError("row 17 of shard 3 is no number")

    found = ahead(batches(), decode=lambda batch: 10 * batch)
    assert [next(found), next(found)] == [10, 20]
    with pytest.raises(ValueError, match="row 17") as raised:
        next(found)
    assert raised.value.__notes__ == ["in batch 3, which was made ahead"]


TRAINING = Training(4, 2, dtype=DType.FLOAT64)


@pytest.mark.parametrize(
    ("degrees", "axes"), long_but([({"dp": 2}, ("data", "tensor")), ({"tp": 2}, ("data", "tensor"))], 0)
)
def test_a_training_learns_the_same_with_and_without_a_feed(degrees: dict[str, int], axes: tuple[str, ...]) -> None:
    plan = deduced_plan(request(2, TRAINING), config_of(TRAINING, **degrees), axes)
    text = corpus(MODEL.vocabulary)
    runs = [train(plan, text, steps=3, batches_ahead=blocks) for blocks in (0, 1, 3)]
    first = {piece.name: piece.array.tobytes() for piece in runs[0].trainers[0].owned_pieces()}
    for run in runs[1:]:
        assert [report.loss for report in run.reports] == [report.loss for report in runs[0].reports]
        assert {piece.name: piece.array.tobytes() for piece in run.trainers[0].owned_pieces()} == first


def test_a_text_that_is_cut_off_ends_a_training_in_order(tmp_path: Path) -> None:
    """On all ranks, with file and byte, after the steps whose batches were read."""
    plan = deduced_plan(request(2, TRAINING), config_of(TRAINING, dp=2), ("data", "tensor"))
    path = tmp_path / "text"
    path.write_bytes(corpus(MODEL.vocabulary).train[:].tobytes())
    text = read_corpus(path)
    seen: list[int] = []

    def cut(trainer: object) -> None:
        seen.append(1)
        path.write_bytes(b"")

    with pytest.raises(RankFault, match=rf"load .*data {path}, byte \d+: the text ends here") as raised:
        train(plan, text, steps=50, after_step=cut)
    assert seen
    assert "go on from the newest checkpoint with --resume" in str(raised.value)
