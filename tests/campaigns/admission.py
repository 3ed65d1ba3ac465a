"""Admission says what all interleavings say: random programs of at most 4 actors, explored to every end.

A program is refused though it never hangs for one written reason alone: a rendezvous in a dynamic stream, where which
of two a rank waits in would depend on timing (`protocol.admit`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from strategy.base.errors import DeadlockError, PlanError
from strategy.program.program import Program
from strategy.program.protocol import admit
from tests.campaigns.outcome import Outcome
from tests.support.interleavings import ends, tiny_program

QUOTAS = {
    "admitted": 0.25,
    "hangs": 0.25,
    "refused for a written reason": 0.005,
    "dynamic stream": 0.3,
    "rendezvous": 0.15,
    "two rendezvous": 0.02,
    "several acts per piece": 0.2,
    "state": 0.3,
    "several blocks": 0.5,
    "four actors": 0.2,
}
STEPS = 3
WAIT = re.compile(r"(\w+ \(rank \d+\)) waits for (\w+ \(rank \d+\)): \S.*")


def run(cases: int, seed: int) -> Outcome:
    """Check `cases` random programs."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        program = tiny_program(number)
        verdict, problems = check(program)
        outcome.add(f"program {number}", problems, (verdict, *exercised(program)))
    return outcome


def exercised(program: Program) -> Iterator[str]:
    """What a program is good for."""
    meetings = {actor.rendezvous for actor in program.actors if actor.rendezvous is not None}
    ports = [port for actor in program.actors for port in (*actor.reads, *actor.writes)]
    yield from ["dynamic stream"] * any(stream.dynamic and stream.sequence for stream in program.streams)
    yield from ["rendezvous"] * bool(meetings)
    yield from ["two rendezvous"] * (len(meetings) == 2)
    yield from ["several acts per piece"] * any(port.acts_per_piece > 1 for port in ports)
    yield from ["state"] * any(register.initial for register in program.registers)
    yield from ["several blocks"] * any(register.blocks > 1 for register in program.registers)
    yield from ["four actors"] * (len(program.actors) == 4)


def check(program: Program) -> tuple[str, list[str]]:
    """(Admission's verdict, in what it differs from that of all interleavings)."""
    found = ends(program, STEPS)
    try:
        admit(program)
    except DeadlockError as error:
        problems = list(_broken(error.cycle, str(error)))
        return "hangs", [*problems, *["refused, but it never hangs"] * (found == {True})]
    except PlanError as error:
        written = "a rendezvous in a dynamic stream" in str(error) and _meets_in_dynamic(program)
        return "refused for a written reason", [] if written else [f"refused: {error}"]
    return "admitted", [] if found == {True} else [f"admitted, but it may hang: {found}"]


def _broken(cycle: tuple[str, ...], message: str) -> Iterator[str]:
    """In what a refusal prints no cycle: every line waits for the next one, the last for the first."""
    waits = [WAIT.fullmatch(line) for line in cycle]
    if not cycle or None in waits:
        yield f"no cycle of waits: {cycle}"
        return
    pairs = [wait.groups() for wait in waits if wait is not None]
    for (_, other), (following, _) in zip(pairs, [*pairs[1:], pairs[0]], strict=True):
        if other != following:
            yield f"{other} is not who waits next: {following}"
    yield from (f"the message does not print {line!r}" for line in cycle if line not in message)


def _meets_in_dynamic(program: Program) -> bool:
    met = {index for index, actor in enumerate(program.actors) if actor.rendezvous is not None}
    return any(stream.dynamic and met.intersection(stream.sequence) for stream in program.streams)
