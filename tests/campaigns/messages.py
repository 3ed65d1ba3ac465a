"""A message between threads is lost, doubled, late, misnumbered, misled or cut off: an error names that.

Each case is a sequence of random boxing steps and transfers by two to four ranks, in which one message that goes from
one rank to another meets a fault. Only a late message may be harmless: those of other channels may overtake it. Then
every rank must hold what it should.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from executor.runtime.transport.base import Lane, Lanes, PeerError, Transport, TransportError
from strategy.program.program import ActKind, BoxingTask
from tests.campaigns.outcome import Outcome, survived
from tests.executor.random_boxing import FAULTS, KINDS, Fault, RandomBoxing, on_threads, play, random_boxing

WORDS = {
    "lost": ("lost or out of order", "waited"),
    "doubled": ("duplicate", "never asked"),
    "late": ("lost or out of order", "waited", "never asked"),
    "renumbered": ("another rendezvous",),
    "strayed": ("lost or out of order", "waited", "never asked"),
    "shortened": ("bytes and found",),
}
"""What the error says of a fault, one of these."""
QUOTAS = {
    **dict.fromkeys(FAULTS, 0.1),
    **{f"{ranks} ranks": 0.2 for ranks in (2, 3, 4)},
    "collective": 0.3,
    "transfer": 0.05,
    "named": 0.9,
}
_STEPS = 5
_PATIENCE_S = 0.4
"""How long a rank waits for a message where one is known to be missing."""
_MOVING = tuple(kind for kind in KINDS if kind is not ActKind.SLICE)


def run(cases: int, seed: int) -> Outcome:
    """Play `cases` faults."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        met: list[str] = []
        outcome.add(f"fault {number}", survived(check(number, met)), [])
        outcome.coverage.update(set(met))
    return outcome


def check(number: int, met: list[str]) -> Iterator[str]:
    """What was wrong with the ranks' answer to one fault."""
    rng = np.random.default_rng(number)
    ranks = 2 + number % 3
    steps = _steps(rng, ranks)
    lanes = {at: Lane(step.task.group) for at, step in enumerate(steps) if isinstance(step.task, BoxingTask)}
    counting = [Fault("lost", -1, source=rank) for rank in range(ranks)]
    on_threads(ranks, partial(_play, steps, 60.0), lanes, lambda message: _through(counting, message))
    sources = [rank for rank, fault in enumerate(counting) if fault.count]
    kind = FAULTS[number // 3 % len(FAULTS)]
    source = random.Random(number).choice(sources)
    fault = Fault(kind, int(rng.integers(counting[source].count)), source=source)
    met += [kind, f"{ranks} ranks"]
    problem = _problem_of(ranks, steps, lanes, fault)
    met.append("transfer" if fault.met is not None and "messages" in fault.met.channel.lane else "collective")
    if fault.met is None:
        yield "met no message"
    elif problem is None:
        if kind != "late":
            yield f"{kind}: nobody has noticed"
    elif isinstance(problem, PeerError) or not isinstance(problem, TransportError):
        yield f"{kind}: {type(problem).__name__}: {problem}"
    elif "rank " not in str(problem) or not any(word in str(problem) for word in WORDS[kind]):
        yield f"{kind} is said to be: {problem}"
    else:
        met.append("named")


def _steps(rng: np.random.Generator, ranks: int) -> Sequence[RandomBoxing]:
    """Some, of which one at least sends something."""
    while True:
        kinds = [_MOVING[int(rng.integers(len(_MOVING)))] for _ in range(_STEPS)]
        found = [random_boxing(rng, ranks, kind) for kind in kinds]
        if any(step.sent_nbytes for step in found):
            return found


def _through(counting: Sequence[Fault], message: object) -> list[object]:
    for fault in counting:
        fault(message)
    return [message]


def _problem_of(ranks: int, steps: Sequence[RandomBoxing], lanes: Lanes, fault: Fault) -> BaseException | None:
    """What the first rank that noticed says."""
    try:
        on_threads(ranks, partial(_play, steps, _PATIENCE_S), lanes, fault)
    except Exception as error:  # noqa: BLE001 (judged by the caller)
        return error
    return None


def _play(steps: Sequence[RandomBoxing], patience_s: float, transport: Transport) -> None:
    """All steps, each compared with what the rank should hold."""
    for number, step in enumerate(steps):
        found = play(step, number, transport, timeout_s=patience_s)
        wanted = step.expected.get(transport.rank)
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert found.tobytes() == wanted.tobytes(), (
                f"rank {transport.rank} holds something else after step {number}"
            )
