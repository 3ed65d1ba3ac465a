"""Workers: processes that answer questions beside this one.

They are forks of this process: nothing is sent but questions and answers. Who answers does not change an answer, so
that a search is the same with and without them.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from types import TracebackType

from strategy.base.beside import be_fork, start_fork
from strategy.base.errors import OutOfTimeError
from strategy.ilp.solve.warm import warm
from strategy.search.template.answers import Answer, Question, Templates

Outcome = Answer | OutOfTimeError
AHEAD = 2
"""So many questions wait at another process at most, so that it has one to go on with while this one answers."""
FAR_AHEAD = 16
"""The same while this process does something else: no more than pipes have room for."""


@dataclass(slots=True)
class _Asked:
    """Questions of one round: which are left, which each other process has, and what is found."""

    questions: list[Question] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    sent: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    found: dict[int, Outcome] = field(default_factory=dict)

    def add(self, question: Question) -> None:
        """One more."""
        self.left.append(len(self.questions))
        self.questions.append(question)


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
    enough: Event = field(default_factory=multiprocessing.get_context("fork").Event)
    """Set while no further question is to be begun by others."""

    def __enter__(self) -> Workers:
        for _ in range(self.beside):
            context = multiprocessing.get_context("fork")
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, ours, self.templates, self.enough), daemon=True)
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

    def answers(self, questions: Iterable[Question]) -> list[Outcome]:
        """The answers, or why there are none, in order; others begin while it is found what else there is to ask."""
        asked = _Asked()
        for question in questions:
            asked.add(question)
            self._take(asked, wait=False)
            self._send(asked, 1)
        while asked.left:
            self._send(asked, 1)
            mine = self._next(asked, 0)
            self._send(asked, AHEAD)
            if mine is not None:
                begin = time.monotonic()
                asked.found[mine] = _outcome(self.templates, asked.questions[mine])
                self.effort_s = (time.monotonic() - begin) / asked.questions[mine].effort
            self._take(asked, wait=False)
        return self._rest(asked)

    def meanwhile(self, questions: Sequence[Question], work: Callable[[], None]) -> list[Outcome | None]:
        """The answers, found by others while this process does something else; None to what they have not begun."""
        asked = _Asked()
        for question in questions:
            asked.add(question)
        self._send(asked, FAR_AHEAD)
        work()
        self.enough.set()
        self._take(asked, wait=True)
        self.enough.clear()
        return [asked.found.get(i) for i in range(len(asked.questions))]

    def _send(self, asked: _Asked, ahead: int) -> None:
        """Let every other process have as many questions as it may, one more each in turn."""
        for count in range(ahead):
            for who in range(1, 1 + len(self.others)):
                if len(asked.sent[who]) <= count:
                    self._send_next(asked, who)

    def _send_next(self, asked: _Asked, who: int) -> None:
        i = self._next(asked, who)
        if i is None:
            return
        try:
            self.others[who - 1][1].send(asked.questions[i])
            asked.sent[who].append(i)
        except (BrokenPipeError, OSError):
            asked.left.append(i)

    def _next(self, asked: _Asked, who: int) -> int | None:
        """What a process is to answer next, of what is left: most effort first, rather what it has the template of."""
        if not asked.left:
            return None

        def order(i: int) -> tuple[int, float, int]:
            question = asked.questions[i]
            built = self.builder.get(question.template.key)
            return 0 if built == who else 1 if built is None else 2, -question.effort, i

        i = min(asked.left, key=order)
        asked.left.remove(i)
        self.builder[asked.questions[i].template.key] = who
        return i

    def _take(self, asked: _Asked, *, wait: bool) -> None:
        """What others have answered; `wait`: until all that was sent is."""
        for who, sent in asked.sent.items():
            while sent and (wait or self.others[who - 1][1].poll()):
                try:
                    outcome = self.others[who - 1][1].recv()
                except (EOFError, OSError):  # it has ended
                    sent.clear()
                    break
                i = sent.pop(0)
                if outcome is not None:
                    asked.found[i] = outcome

    def _rest(self, asked: _Asked) -> list[Outcome]:
        """All answers, in order; what nobody has answered this process does."""
        self._take(asked, wait=True)
        for i, question in enumerate(asked.questions):
            if i not in asked.found:
                asked.found[i] = _outcome(self.templates, question)
                self.builder[question.template.key] = 0
        return [asked.found[i] for i in range(len(asked.questions))]


def _outcome(templates: Templates, question: Question) -> Outcome:
    try:
        return templates.answer(question)
    except OutOfTimeError as error:
        return error


def _serve(connection: Connection, theirs: Connection, templates: Templates, enough: Event) -> None:
    """Answer until whoever asks has ended; before anything is asked, load the machine code that it will take."""
    be_fork()
    theirs.close()
    warm()
    while True:
        try:
            question = connection.recv()
            connection.send(None if enough.is_set() else _outcome(templates, question))
        except (EOFError, OSError):
            return
