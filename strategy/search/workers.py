"""Workers: processes that answer questions beside this one.

They are forks of this process: nothing is sent but questions and answers. Who answers does not change an answer, so
that a search is the same with and without them. Every process claims what it answers next, most effort first, rather
what it has the template of: none waits as long as there is something to answer.
"""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType

from strategy.base.beside import be_fork, spare_processors, start_fork
from strategy.base.errors import OutOfTimeError
from strategy.ilp.solve.warm import warm
from strategy.models import Model
from strategy.search.claimed_work import ClaimedWork
from strategy.search.template.answers import Answer, Question, Templates
from strategy.space.request import Request

Outcome = Answer | OutOfTimeError
WORKERS = 1
"""Processes beside this one, if there are processors."""
FAR_AHEAD = 48
"""So many questions are sent to a process that has not answered since: no more than pipes have room for."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question with its number, and whether the process that asks has its template."""

    number: int
    question: Question
    is_built: bool

    def order(self, templates: Templates) -> tuple[int, float, int]:
        """The least first is what a process with these templates answers next."""
        key = 0 if templates.has(self.question.template) else 2 if self.is_built else 1
        return key, -self.question.effort, self.number


@dataclass(slots=True)
class _Round:
    """Questions that are asked together: what nobody has claimed, as far as is known here, and what is found."""

    first: int
    questions: list[_Asked] = field(default_factory=list)
    left: list[_Asked] = field(default_factory=list)
    sent: Counter[int] = field(default_factory=Counter)
    """To each other process so many, and since it answered last."""
    waiting: Counter[int] = field(default_factory=Counter)
    here: set[int] = field(default_factory=set)
    """What this process has claimed."""
    found: dict[int, Outcome] = field(default_factory=dict)

    def add(self, question: Question, *, is_built: bool) -> None:
        """One more."""
        asked = _Asked(self.first + len(self.questions), question, is_built)
        self.questions.append(asked)
        self.left.append(asked)


def workers_of(request: Request, short: Model) -> Workers:
    """As many as boxes are refined beside others; they may be started before it is known which boxes there are."""
    return Workers(Templates(request, short), min(WORKERS, spare_processors()))


@dataclass(slots=True)
class Workers:
    """This process and at most `beside` others; each builds the templates that it is asked about."""

    templates: Templates
    beside: int
    others: list[tuple[BaseProcess, Connection]] = field(default_factory=list)
    builder: dict[object, int] = field(default_factory=dict)
    """Template -> who answered about it last: 0 is this process."""
    effort_s: float = 0.1
    """Seconds that a question has taken lately, by the measure of `Question.effort`."""
    claimed: ClaimedWork = field(default_factory=ClaimedWork)
    asked: int = 0
    """Questions so far."""

    def __enter__(self) -> Workers:
        self.claimed = ClaimedWork()
        for _ in range(self.beside):
            context = multiprocessing.get_context("fork")
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, ours, self.templates, self.claimed), daemon=True)
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
        together = _Round(self.asked)
        for question in questions:
            self._add(together, question)
        while (mine := self._claim(together)) is not None:
            begin = time.monotonic()
            self._answer(together, mine)
            self.effort_s = (time.monotonic() - begin) / mine.question.effort
            self._exchange(together)
        self._end(together)
        for asked in together.questions:
            if asked.number not in together.found:  # whoever claimed it has ended
                self._answer(together, asked)
        return [together.found[asked.number] for asked in together.questions]

    def meanwhile(self, questions: Sequence[Question], work: Callable[[], None]) -> list[Outcome | None]:
        """The answers, found by others while this process does something else; None to what they have not begun."""
        together = _Round(self.asked)
        for question in questions:
            self._add(together, question)
        work()
        for asked in together.left:  # nobody is to begin it any more
            self.claimed.claim(asked.number)
        self._end(together)
        return [together.found.get(asked.number) for asked in together.questions]

    def _add(self, together: _Round, question: Question) -> None:
        together.add(question, is_built=self.templates.has(question.template))
        self.asked += 1
        self._exchange(together)

    def _claim(self, together: _Round) -> _Asked | None:
        """What this process is to answer next; not what is the only thing left to another that has its template."""
        for asked in sorted(together.left, key=lambda asked: asked.order(self.templates)):
            if self._is_left_to(together, asked):
                continue
            together.left.remove(asked)
            if not self.others or self.claimed.claim(asked.number):
                together.here.add(asked.number)
                return asked
        return None

    def _is_left_to(self, together: _Round, asked: _Asked) -> bool:
        who = self.builder.get(asked.question.template.key, 0)
        if not who or asked.is_built or together.waiting[who] >= FAR_AHEAD:
            return False
        done = {asked.number, *together.here, *together.found}
        return done.issuperset(range(together.first, together.first + len(together.questions)))

    def _answer(self, together: _Round, asked: _Asked) -> None:
        together.found[asked.number] = _outcome(self.templates, asked.question)
        self.builder[asked.question.template.key] = 0

    def _exchange(self, together: _Round) -> None:
        """Take what others have answered by now, and let them know what else there is to claim."""
        for who, (_, connection) in enumerate(self.others, 1):
            try:
                while connection.poll():
                    self._receive(together, who)
                for asked in together.questions[together.sent[who] :]:
                    if together.waiting[who] >= FAR_AHEAD:
                        break
                    connection.send(asked)
                    together.sent[who] += 1
                    together.waiting[who] += 1
            except (EOFError, OSError):  # it has ended
                together.waiting[who] = FAR_AHEAD

    def _receive(self, together: _Round, who: int) -> bool:
        """Whether another process has something to say but that it has come to the end of a round."""
        told = self.others[who - 1][1].recv()
        if told is None:
            return False
        number, outcome = told
        together.waiting[who] = 0
        if number >= together.first:  # else of a round that was broken off
            together.found[number] = outcome
            self.builder[together.questions[number - together.first].question.template.key] = who
        return True

    def _end(self, together: _Round) -> None:
        """Take what others have claimed, of a round of which nothing is left to claim."""
        for who, (_, connection) in enumerate(self.others, 1):
            try:
                connection.send(None)
                while self._receive(together, who):
                    pass
            except (EOFError, OSError):  # it has ended
                continue


def _outcome(templates: Templates, question: Question) -> Outcome:
    try:
        return templates.answer(question)
    except OutOfTimeError as error:
        return error


def _serve(connection: Connection, theirs: Connection, templates: Templates, claimed: ClaimedWork) -> None:
    """Answer until whoever asks has ended; before anything is asked, load the machine code that it will take."""
    be_fork()
    theirs.close()
    warm()
    # What is said waits until whoever asks has time to listen; meanwhile the next question is answered.
    said: queue.SimpleQueue[tuple[int, Outcome] | None] = queue.SimpleQueue()
    threading.Thread(target=_say, args=(connection, said), daemon=True).start()
    left, is_last = list[_Asked](), False
    while True:
        try:
            while not (left or is_last) or connection.poll():
                asked = connection.recv()
                is_last = asked is None
                left += [] if is_last else [asked]
        except (EOFError, OSError):
            return
        left.sort(key=lambda asked: asked.order(templates))
        if left:
            mine = left.pop(0)
            if claimed.claim(mine.number):
                said.put((mine.number, _outcome(templates, mine.question)))
        elif is_last:
            said.put(None)
            is_last = False


def _say(connection: Connection, said: queue.SimpleQueue[tuple[int, Outcome] | None]) -> None:
    while True:
        try:
            connection.send(said.get())
        except OSError:
            return
