"""Ranks that would not compile or compute the same are told what differs, before anything is mixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from executor.frontend.agreement import agree_on, sharers_of
from executor.frontend.global_tensor import broadcast, placement, split
from executor.frontend.world import World
from strategy.base.errors import RunError
from strategy.passes.training import Training
from strategy.sbp.tensor import DType
from tests.executor.worlds import on_ranks
from tests.mpi.shared_state import Mlp, Train, features

ODD = 1
"""The rank that differs, of two or three."""


def train_once(world: World, inputs: tuple[Any, Any] | None = None, **other: Any) -> None:
    options: dict[str, Any] = {"placement": placement([0, 1]), "training": Training(8, lr=0.1, dtype=DType.FLOAT64)}
    Train(Mlp(), **{**options, **other})(*(features() if inputs is None else inputs)).result()


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"training": Training(8, lr=0.2, dtype=DType.FLOAT64)}, r"training's lr: 0\.1 on rank 0; 0\.2 on rank 1"),
        ({"seed": 3}, "seed: 0 on rank 0; 3 on rank 1"),
        ({"layouts": {"x": split(0)}}, "layouts:  on rank 0; x .*on rank 1"),
        ({"output_buffers": 1}, "output buffers: 2 on rank 0; 1 on rank 1"),
    ],
)
def test_graphs_that_differ_in_an_option_are_not_compiled(odd: dict[str, Any], told: str) -> None:
    def code(world: World) -> None:
        train_once(world, **(odd if world.rank == ODD else {}))

    with pytest.raises(RunError, match=rf"^the ranks do not compile Train alike\n  {told}$"):
        on_ranks(2, code)


def test_all_that_differs_is_told_at_once() -> None:
    def code(world: World) -> None:
        other = (
            {"training": Training(8, lr=0.2, weight_decay=0.5, dtype=DType.FLOAT64), "seed": 1}
            if world.rank == ODD
            else {}
        )
        train_once(world, **other)

    with pytest.raises(RunError) as caught:
        on_ranks(2, code)
    assert [line.partition(":")[0].strip() for line in str(caught.value).splitlines()[1:]] == [
        "seed",
        "training's lr",
        "training's weight_decay",
    ]


def test_a_module_that_differs_is_another_computation() -> None:
    def code(world: World) -> None:
        model = Mlp()
        if world.rank == ODD:
            model.two, model.one = model.one, model.two
        Train(model, placement=placement([0, 1]), training=Training(8, dtype=DType.FLOAT64))(*features())

    with pytest.raises(Exception, match=r"computation: \w+ on rank 0; \w+ on rank 1|do not compose"):
        on_ranks(2, code)


def altered(change: Callable[[Any, Any], None]) -> tuple[Any, Any]:
    x, labels = (given.copy() for given in features())
    change(x, labels)
    return x, labels


def test_an_input_that_is_not_split_is_the_same_on_all_ranks_in_every_call() -> None:
    def code(world: World, calls: int) -> None:
        pins = {"x": broadcast, "labels": broadcast}
        training = Training(8, dtype=DType.FLOAT64)
        train = Train(Mlp(), placement=placement([0, 1]), training=training, layouts=pins)
        for number in range(3):
            differs = world.rank == ODD and number == calls
            train(*(altered(lambda x, _: np.put(x, 0, 9.0)) if differs else features())).result()

    for calls in (0, 2):
        told = rf"^call {calls + 1} of Train: the ranks do not read the same\n  x: the part that ranks 0, 1 share is "
        with pytest.raises(RunError, match=told):
            on_ranks(2, lambda world, calls=calls: code(world, calls))  # type: ignore[misc]


def test_of_an_input_that_is_split_each_rank_needs_its_own_part_alone() -> None:
    def code(world: World) -> None:
        half = len(features()[0]) // 2
        theirs = slice(half, None) if world.rank == 0 else slice(0, half)
        inputs = altered(lambda x, labels: (x[theirs].fill(np.nan), labels[theirs].fill(0)))  # type: ignore[func-returns-value]
        train_once(world, inputs, layouts={"x": split(0), "labels": split(0)})

    on_ranks(2, code)


def test_parts_are_compared_by_who_shares_them() -> None:
    """A grid of two by two: rows along the first axis, alike along the second."""

    def code(world: World) -> None:
        differs = altered(lambda x, _: np.put(x, 0, 9.0))  # the first row, which ranks 0 and 1 read
        grid = placement([[0, 1], [2, 3]])
        pins = {"x": [split(0), broadcast], "labels": [split(0), broadcast]}
        train_once(world, differs if world.rank in (1, 3) else None, placement=grid, layouts=pins)

    with pytest.raises(RunError, match=r"\n  x: the part that ranks 0, 1 share is \w+ on rank 0; \w+ on rank 1$"):
        on_ranks(4, code)


def test_who_shares_a_part() -> None:
    boxes = {0: ((0, 2),), 1: ((2, 4),), 2: ((0, 2),), 3: ((4, 5),)}
    assert sharers_of(boxes) == [(0, 2)]


def test_facts_that_only_some_ranks_have_differ() -> None:
    def code(world: World) -> None:
        agree_on(world, "start", {"one": "1"} if world.rank else {"one": "1", "two": "2"})

    with pytest.raises(RunError, match="what is given at all: one, two on rank 0; one on rank 1"):
        on_ranks(2, code)
