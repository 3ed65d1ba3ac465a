"""The error tree: one class per way in which a job can end, each with its exit code.

A message says what is wrong, where, what was found, what was expected, and what to do next. Whatever a
user can cause is a `SbplanError`; anything else that escapes is a bug and is reported as `InternalError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TypeVar

_Value = TypeVar("_Value")


MOST_CHARACTERS = 2000
"""Of a value that an error shows."""


def shortened(value: object) -> str:
    """A value as an error shows it: its `repr`, without the middle of a very long one."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists in lists in lists
        return f"a {type(value).__name__} that is too large to be shown"
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]} ... {text[-half:]}"


class SbplanError(Exception):
    """Base of every error that sbplan raises on purpose."""

    exit_code = 70

    def __reduce__(self) -> tuple[object, ...]:
        """A copy from another process says the same: its text is not put together again."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[SbplanError], args: tuple[object, ...], details: dict[str, object]) -> SbplanError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(details)
    return error


class InputError(SbplanError):
    """Something that the user gave is wrong: a file, a key, a figure, a flag."""

    exit_code = 2

    def __init__(
        self,
        problem: str,
        *,
        where: str = "",
        got: object = None,
        expected: str = "",
        hint: str = "",
    ) -> None:
        self.problem = problem
        self.where = where
        self.got = got
        self.expected = expected
        self.hint = hint
        text = f"{where}: {problem}" if where else problem
        details = [] if got is None else [f"got {shortened(got)}"]
        if expected:
            details.append(f"expected {expected}")
        if details:
            text += f" ({', '.join(details)})"
        if hint:
            text += f"; {hint}"
        super().__init__(text)


class SbpError(InputError):
    """A layout that cannot be: a split beyond the dim, an empty shard, an illegal transition."""


class GraphError(InputError):
    """A graph that does not compose. Every problem of the graph is collected and reported at once."""

    def __init__(self, problems: Sequence[str], *, where: str = "graph") -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''}\n{lines}", where=where)


def report(problems: Sequence[InputError], *, where: str) -> None:
    """Raise what is wrong, if anything is: one problem as it is, several as one report."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise GraphError([str(problem) for problem in problems], where=where)


class PlanError(InputError):
    """A plan that is illegal, inconsistent, or not the plan of this run."""


class CertificateError(InputError):
    """A certificate that does not show what it claims: which step or leaf, and why."""


class DeadlockError(PlanError):
    """A program that cannot finish: `cycle` names who waits for whom, the last for the first."""

    def __init__(self, cycle: Sequence[str], *, where: str = "program") -> None:
        self.cycle = tuple(cycle)
        drawing = "\n".join(f"  {link}" for link in self.cycle)
        super().__init__(
            f"would hang: each of these waits for the next, the last for the first\n{drawing}",
            where=where,
            hint="give a register on the cycle more blocks, or change the order of its stream",
        )


class InfeasibleError(SbplanError):
    """No answer exists within the stated limits, and that was proved."""

    exit_code = 3

    def __init__(self, problem: str, *, smallest_limit: int | None = None, hint: str = "") -> None:
        self.smallest_limit = smallest_limit
        super().__init__(f"infeasible: {problem}" + (f"; {hint}" if hint else ""))


class ContradictionError(InfeasibleError):
    """Pins that leave nothing together, whatever the memory."""


class OutOfTimeError(SbplanError):
    """The budget was used up before there was an answer; what is known until then is whole."""

    exit_code = 4


class EnvironmentLacks(SbplanError):
    """This machine lacks something: says what, and how to get it."""

    exit_code = 5


class RunError(SbplanError):
    """A run that started and failed."""

    exit_code = 6


class RankFault(RunError):
    """One rank failed: which, at which actor, in which step (counted from 1, as `train` does)."""

    def __init__(self, rank: int, actor: str, step: int, reason: str) -> None:
        self.rank, self.actor, self.step, self.reason = rank, actor, step, reason
        super().__init__(f"rank {rank} failed in actor {actor!r} at step {step}: {reason}")


class InternalError(SbplanError):
    """A bug in sbplan: a state that should not be reachable. Please report it."""


def present(value: _Value | None, what: str) -> _Value:
    """`value`, which cannot be missing here.

    Raises:
        InternalError: it is.
    """
    if value is None:
        raise InternalError(f"missing: {what}")
    return value


def printable(text: str) -> str:
    """A text for a terminal: what would steer it, or hide or reorder the text, is written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, or lists the known ones."""
    words = sorted(known)
    close = get_close_matches(word, words, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(words)}" if words else ""
