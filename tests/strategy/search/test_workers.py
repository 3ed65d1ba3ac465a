"""Workers: what other processes answer is what this one would, and what they cannot answer this one does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import OutOfTimeError
from strategy.bounds.point import MICRO, SAVED, SIZE
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.template.answers import Answer, Question, Templates
from strategy.search.workers import Workers
from strategy.space.short_model import shortened
from tests.support.small_plans import request

GPT = GptConfig(layers=6, width=64, heads=4, sequence=16, vocabulary=96)
TRAINING = Training(global_batch=16, precision=Precision.BF16)


def templates() -> Templates:
    short = shortened(GPT)
    assert short is not None
    return Templates(request(4, TRAINING, model=GPT, backend="cuda"), short)


def question(dp: int, tp: int, *, tensor_axis: bool, byte: float = 0.0, budget: Budget = UNLIMITED) -> Question:
    weights = np.zeros(SIZE)
    weights[MICRO] = np.tile([1.0, GPT.layers - 2, 1.0], 3)
    weights[SAVED] = byte
    return Question(PlanConfig(dp, tp, 1, 2, 8 // dp, Schedule.ONE_F_ONE_B), weights, tensor_axis, 60.0, budget)


ASKED = [
    question(2, 2, tensor_axis=False),
    question(2, 2, tensor_axis=True),
    question(1, 4, tensor_axis=True),
    question(1, 4, tensor_axis=True, byte=1.0),
]


def told(outcome: object) -> object:
    assert isinstance(outcome, Answer)
    proposed, point = outcome.proposed, outcome.point
    assert point is not None
    return outcome.cut.inequality.least, point.tolist(), proposed and (dict(proposed.signatures), proposed.parts)


@pytest.mark.long
def test_who_answers_does_not_change_an_answer() -> None:
    with Workers(templates(), 0) as alone, Workers(templates(), 2) as several:
        mine = [told(one) for one in alone.answers(ASKED)]
        several.answers(ASKED[:3])
        assert {several.builder[one.template.key] for one in ASKED} == {0, 1, 2}
        theirs = [told(one) for one in several.answers(ASKED)]
        again = [told(one) for one in several.answers(ASKED[::-1])]
    assert mine == theirs == again[::-1]


@pytest.mark.long
def test_what_a_process_that_has_ended_was_asked_is_answered_here() -> None:
    with Workers(templates(), 1) as workers:
        workers.answers(ASKED)
        (process, _), *_ = workers.others
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert [told(one) for one in workers.answers(ASKED)] == [told(one) for one in templates_answer()]
    assert not workers.others


@pytest.mark.long
def test_others_answer_while_something_else_is_done() -> None:
    with Workers(templates(), 2) as workers:

        def until_some_are_there() -> None:
            for _, connection in workers.others:
                connection.poll(None)

        outcomes = workers.meanwhile(ASKED, until_some_are_there)
        assert 0 not in workers.builder.values()
        assert sum(one is not None for one in outcomes) >= 2, "what was begun is answered"
        for one, here in zip(outcomes, templates_answer(), strict=True):
            assert one is None or told(one) == told(here)
        assert [told(one) for one in workers.answers(ASKED)] == [told(one) for one in templates_answer()]


def test_what_others_have_not_begun_is_left() -> None:
    done: list[int] = []
    with Workers(templates(), 0) as alone:
        assert alone.meanwhile(ASKED, lambda: done.append(1)) == [None] * len(ASKED)
    assert done == [1]


@cache
def templates_answer() -> list[Answer]:
    here = templates()
    return [here.answer(one) for one in ASKED]


@pytest.mark.long
def test_a_round_that_is_broken_off_leaves_nothing_to_the_next() -> None:
    def broken_off() -> Iterator[Question]:
        yield from ASKED
        raise RuntimeError("what is asked next is not known")

    with Workers(templates(), 1) as workers:
        with pytest.raises(RuntimeError, match="not known"):
            workers.answers(broken_off())
        assert [told(one) for one in workers.answers(ASKED[::-1])] == [told(one) for one in templates_answer()[::-1]]


@pytest.mark.parametrize("beside", [0, 1])
def test_why_there_is_no_answer_is_told(beside: int) -> None:
    late = question(2, 2, tensor_axis=False, budget=Budget.of(0.0))
    with Workers(templates(), beside) as workers:
        outcomes = workers.answers([late, ASKED[2], late])
    assert [type(one) for one in outcomes] == [OutOfTimeError, Answer, OutOfTimeError]
