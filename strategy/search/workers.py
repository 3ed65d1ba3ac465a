"""Workers: processes that answer questions beside this one.

They are forks of this process: nothing is sent but questions and answers. Who answers does not change an answer, so
that a search is the same with and without them.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType

from strategy.base.beside import be_fork, start_fork
from strategy.base.errors import OutOfTimeError
from strategy.ilp.solve.warm import warm
from strategy.search.template.answers import Answer, Question, Templates

Outcome = Answer | OutOfTimeError
OWN_EFFORT = 0.7
"""What this process does beside answering, by the measure of `Question.effort`: it finds what else to ask."""


@dataclass(slots=True)
class Workers:
    """This process and at most `beside` others; each builds the templates that it is asked about."""

    templates: Templates
    beside: int
    others: list[tuple[BaseProcess, Connection]] = field(default_factory=list)
    builder: dict[object, int] = field(default_factory=dict)
    """Template -> who has built it: 0 is this process."""
    effort_s: float = 0.1
    """Seconds that a question has taken lately, by the measure of `Question.effort`."""

    def __enter__(self) -> Workers:
        for _ in range(self.beside):
            context = multiprocessing.get_context("fork")
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, ours, self.templates), daemon=True)
            start_fork(process)
            theirs.close()
            self.others.append((process, ours))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process, connection in self.others:
            connection.close()
            process.terminate()
            process.join()
        self.others.clear()
        self.builder.clear()

    def answers(self, first: Sequence[Question], others: Callable[[], Sequence[Question]] = tuple) -> list[Outcome]:
        """The answers, or why there are none, in order; what else is to be asked is found while others begin."""
        load = [OWN_EFFORT, *(0.0 for _ in self.others)]

        def more() -> tuple[Sequence[Question], list[tuple[int, int]]]:
            found = others()
            return found, self._dealt(found, load)

        return self._answered(first, self._dealt(first, load), more)

    def meanwhile(self, questions: Sequence[Question], work: Callable[[], None]) -> list[Outcome]:
        """The answers, found by others while this process does something else."""

        def nothing_more() -> tuple[Sequence[Question], list[tuple[int, int]]]:
            work()
            return (), []

        return self._answered(questions, self._dealt(questions, [math.inf, *(0.0 for _ in self.others)]), nothing_more)

    def _answered(
        self,
        first: Sequence[Question],
        dealt: Sequence[tuple[int, int]],
        more: Callable[[], tuple[Sequence[Question], list[tuple[int, int]]]],
    ) -> list[Outcome]:
        asked = [(i, who) for i, who in dealt if who and self._ask(who, first[i])]
        others, to_whom = more()
        questions = [*first, *others]
        asked += [(i + len(first), who) for i, who in to_whom if who and self._ask(who, others[i])]
        found: list[Outcome | None] = [None] * len(questions)
        sent, begin = {i for i, _ in asked}, time.monotonic()
        own = [i for i in range(len(questions)) if i not in sent]
        for i in own:
            found[i] = _outcome(self.templates, questions[i])
        if own:
            self.effort_s = (time.monotonic() - begin) / sum(questions[i].effort for i in own)
        for i, who in asked:
            found[i] = self._receive(who)
        return [outcome or _outcome(self.templates, questions[i]) for i, outcome in enumerate(found)]

    def _dealt(self, questions: Sequence[Question], load: list[float]) -> list[tuple[int, int]]:
        """(question, who answers it): about as much for each, by whoever has built its template where that is even.

        Else by others first: there is more for this process to do.
        """
        dealt = []
        for i in sorted(range(len(questions)), key=lambda i: -questions[i].effort):
            least = min(load)
            built = self.builder.get(questions[i].template.key)
            who = built if built is not None and load[built] == least else _last(load, least)
            load[who] += questions[i].effort
            self.builder[questions[i].template.key] = who
            dealt.append((i, who))
        return dealt

    def _ask(self, who: int, question: Question) -> bool:
        try:
            self.others[who - 1][1].send(question)
        except (BrokenPipeError, OSError):
            return False
        return True

    def _receive(self, who: int) -> Outcome | None:
        """What it answers; None where it has ended."""
        try:
            outcome: Outcome = self.others[who - 1][1].recv()
        except (EOFError, OSError):
            return None
        return outcome


def _last(numbers: list[float], value: float) -> int:
    """Where a value stands last."""
    return len(numbers) - 1 - numbers[::-1].index(value)


def _outcome(templates: Templates, question: Question) -> Outcome:
    try:
        return templates.answer(question)
    except OutOfTimeError as error:
        return error


def _serve(connection: Connection, theirs: Connection, templates: Templates) -> None:
    """Answer until whoever asks has ended; before anything is asked, load the machine code that it will take."""
    be_fork()
    theirs.close()
    warm()
    while True:
        try:
            question = connection.recv()
            connection.send(_outcome(templates, question))
        except (EOFError, OSError):
            return
