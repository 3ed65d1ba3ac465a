r"""Vector clocks: what ranks know of one another's acts by the messages between them.

A message leaves when its sender's main stream has written it, and has come when its receiver's reads it. Whoever reads
it knows of all that its sender had done, or knew, by then (Fidge 1988; Mattern 1988, Virtual Time and Global States of
Distributed Systems). So a rank knows more of its own messages than its own acts say:

    rank 0   | lap 0 |  >  .  .  .  .  .  | lap 1 |        lap 1 begins: rank 1 has read what lap 0 sent,
                        \              /                    whose block is free; and the message to lap 1
    rank 1   .  .  .  .  | lap 0 |  >                      came no earlier than when lap 0 was done

Only acts of the ranks that are there count: what is sent to others, or comes from them, is as unknown as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from strategy.base.compiled import compiled
from strategy.lowering.arena import Integers
from strategy.lowering.turns import NEVER, Known
from strategy.program.program import Message, Program, TransferTask

MOST_ENTRIES = 2**26
"""Of all clocks together: 512 MiB. More are not kept, and nothing is heard."""


@dataclass(frozen=True, slots=True, eq=False)
class _Messages:
    """Between the ranks that are there, numbered; times are those of the main stream of each end."""

    sender: Integers
    receiver: Integers
    sent: Integers
    """When what the message holds is written; -1 where that is not known."""
    read: Integers
    """When it is read; `NEVER` where that is not known."""


def heard(program: Program, known: Known) -> Known:
    """When the acts of transfers begin at the earliest and are known to be done, by all that ranks hear of one another.

    Args:
        program: whose transfers.
        known: the same of every transfer, by the acts of its own rank.
    """
    rank_of = {actor: program.actors[actor].rank for actor in known}
    number = {rank: at for at, rank in enumerate(sorted(set(rank_of.values())))}
    pairs = list(_pairs(program, known))
    acts = [len(known[sender][0]) for sender, _ in pairs]
    if not pairs or 2 * sum(acts) * len(number) > MOST_ENTRIES:
        return {}
    messages = _Messages(
        np.repeat([number[rank_of[sender]] for sender, _ in pairs], acts),
        np.repeat([number[rank_of[receiver]] for _, receiver in pairs], acts),
        np.concatenate([known[sender][0] for sender, _ in pairs]),
        np.concatenate([known[receiver][1] for _, receiver in pairs]),
    )
    begins, ends = _told(messages, len(number))
    sources, targets = _ends_of(program, known)
    found: dict[int, tuple[Integers, Integers]] = {}
    begin_of, end_of = defaultdict[int, list[Integers]](list), defaultdict[int, list[Integers]](list)
    at = 0
    for (sender, receiver), count in zip(pairs, acts, strict=True):
        end_of[sender].append(ends[at : at + count])
        begin_of[receiver].append(begins[at : at + count])
        at += count
    for actor, (begin, end) in known.items():
        # a piece may come in parts, and part of it go to ranks of which nothing is known
        if len(begin_of[actor]) == sources[actor] > 0:
            begin = np.maximum(begin, np.min(begin_of[actor], axis=0))
        if len(end_of[actor]) == targets[actor] > 0:
            end = np.minimum(end, np.max(end_of[actor], axis=0))
        found[actor] = begin, end
    return found


def _pairs(program: Program, known: Known) -> Iterator[tuple[int, int]]:
    """Actors that are the two ends of a message, sender first."""
    by_act = defaultdict[int, dict[int, int]](dict)
    for actor in known:
        act = program.actors[actor]
        if act.rendezvous is not None:
            by_act[act.rendezvous][act.rank] = actor
    for members in by_act.values():
        messages = _messages(program, next(iter(members.values())))
        for source, target in sorted({(one.source, one.target) for one in messages if one.source != one.target}):
            if source in members and target in members:
                yield members[source], members[target]


def _ends_of(program: Program, known: Known) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """By actor, how many ranks send to it and how many it sends to; itself counts, and is no end of any pair."""
    sources, targets = dict[int, int](), dict[int, int]()
    for actor in known:
        rank, messages = program.actors[actor].rank, _messages(program, actor)
        sources[actor] = len({one.source for one in messages if one.target == rank})
        targets[actor] = len({one.target for one in messages if one.source == rank})
    return sources, targets


def _messages(program: Program, actor: int) -> tuple[Message, ...]:
    task = program.actors[actor].task
    return task.messages if isinstance(task, TransferTask) else ()


def _told(messages: _Messages, ranks: int) -> tuple[Integers, Integers]:
    """By message: what of its receiver's time is over when it leaves, and the sender's first time that knows it read.

    -1 and `NEVER` where nothing tells.
    """
    read = messages.read < NEVER
    leaving = np.lexsort((messages.sent, messages.sender))
    arriving = np.flatnonzero(read)
    arriving = arriving[np.lexsort((messages.read[arriving], messages.receiver[arriving]))]
    leave_at = np.searchsorted(messages.sender[leaving], np.arange(ranks + 1))
    arrive_at = np.searchsorted(messages.receiver[arriving], np.arange(ranks + 1))
    clocks = np.full((len(read), ranks), -1, np.int64)
    history = np.full((len(arriving), ranks), -1, np.int64)
    turns = (len(leaving) + len(arriving)) * ranks
    _exchange.worth(turns)(
        messages.sender, messages.sent, messages.read, leaving, leave_at, arriving, arrive_at, clocks, history
    )
    begins = clocks[np.arange(len(read)), messages.receiver]
    ends = np.full(len(read), NEVER, np.int64)
    for one in range(ranks):
        mine = slice(arrive_at[one], arrive_at[one + 1])
        times, seen = messages.read[arriving[mine]], history[mine]
        own = np.flatnonzero((messages.sender == one) & read)
        for other in np.unique(messages.receiver[own]).tolist():
            to_it = own[messages.receiver[own] == other]
            first = np.searchsorted(seen[:, other], messages.read[to_it])
            ends[to_it] = np.append(times, NEVER)[first]
    return begins, ends


@compiled
def _exchange(
    sender: Integers,
    sent: Integers,
    read: Integers,
    leaving: Integers,
    leave_at: Integers,
    arriving: Integers,
    arrive_at: Integers,
    clocks: Integers,
    history: Integers,
) -> None:
    """Writes the clock that every message carries, and the reader's after each that arrives.

    The messages that leave a rank, and those that arrive there, are listed by time; ranks go on in turn, each until it
    would read what has not left yet.
    """
    ranks = len(leave_at) - 1
    now = np.full((ranks, ranks), -1, np.int64)
    left, arrived = leave_at[:-1].copy(), arrive_at[:-1].copy()
    has_left = np.zeros(len(sent), np.bool_)
    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            while True:
                leaves = left[rank] < leave_at[rank + 1]
                arrives = arrived[rank] < arrive_at[rank + 1]
                if arrives and leaves:
                    arrives = read[arriving[arrived[rank]]] <= sent[leaving[left[rank]]]
                if arrives:
                    message = arriving[arrived[rank]]
                    if not has_left[message]:
                        break
                    for other in range(ranks):
                        now[rank, other] = max(now[rank, other], clocks[message, other])
                        history[arrived[rank], other] = now[rank, other]
                    arrived[rank] += 1
                elif leaves:
                    message = leaving[left[rank]]
                    for other in range(ranks):
                        clocks[message, other] = now[rank, other]
                    clocks[message, rank] = max(clocks[message, rank], sent[message])
                    has_left[message] = True
                    left[rank] += 1
                else:
                    break
                moved = True
