"""Act graph: which acts each act of a program waits for, as arrays. Only of programs whose order is fixed.

An act waits for the act before it in its stream; for the act that completes each piece that it is the first to read;
and, where it begins a piece, for the acts that gave back the block which that piece goes into (`protocol`). The acts of
one rendezvous are one *node*, which waits for what any of its members waits for; every other act is a node by itself.
Nodes stand in an order in which each comes after all that it waits for.

Dynamic streams with several actors are refused by name: the event engine is for them. Acts that may share a resource
are no matter of the graph; `shared` names one.

A graph is made once and swept for many durations (`sweep`); a single run is the event engine's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from simulator.acts import Integers
from simulator.resources import check_demands
from strategy.base.compiled import compiled
from strategy.base.errors import InternalError, PlanError
from strategy.program.program import Program, time_alone_ns
from strategy.program.protocol import admit, rendezvous_members


class SweepRefusal(PlanError):
    """A program whose times depend on more than its graph of acts."""


@dataclass(frozen=True, slots=True, eq=False)
class ActGraph:
    """Acts and nodes in order. Acts of node i are `first_act[i]` to `first_act[i + 1]`; likewise waits of acts.

    `actor` and `number` say which act it is, `latency_ns` what it takes without jitter; a node takes the longest
    latency of its acts, and then, alone, `transfer_ns`. `waits` are nodes whose ends an act waits for.
    """

    steps: int
    actor: Integers
    number: Integers
    latency_ns: Integers
    transfer_ns: Integers
    first_act: Integers
    first_wait: Integers
    waits: NDArray[np.int32]
    shared: str | None

    @property
    def num_nodes(self) -> int:
        """Acts, those of a rendezvous counted as one."""
        return len(self.transfer_ns)

    @property
    def num_acts(self) -> int:
        """Acts, those of a rendezvous counted one by one."""
        return len(self.actor)


def dynamic_order(program: Program) -> str | None:
    """Which stream takes its actors in an order that depends on timing; None if none does."""
    for stream in program.streams:
        found = len(set(stream.sequence)) if stream.dynamic else 1
        if found > 1:
            return f"dynamic stream {stream.name} of rank {stream.rank} takes its {found} actors in the order of events"
    return None


def shared_resource(program: Program) -> str | None:
    """Which resource acts of different streams use, perhaps at once; None if there is none."""
    for name, streams in _users(program).items():
        if not set.intersection(*streams):
            first, *_, last = sorted({i for found in streams for i in found})
            one, other = (program.streams[i] for i in (first, last))
            return f"resource {name} is shared by streams {one.name} (rank {one.rank}) and {other.name} ({other.rank})"
    return None


def act_graph(program: Program, steps: int) -> ActGraph:
    """The acts of `steps` steps.

    Raises:
        SweepRefusal: the order of some acts depends on timing.
        DeadlockError: the program hangs.
        PlanError: it is inconsistent.
    """
    check_demands(program)
    problem = dynamic_order(program)
    if problem is not None:
        raise SweepRefusal(f"no fixed order: {problem}", hint="the event engine takes it")
    return _Builder(program, steps).graph()


def _users(program: Program) -> dict[str, list[set[int]]]:
    """Resource -> for each actor or rendezvous that moves bytes through it, the streams that it stands in."""
    stream_of = _stream_of(program)
    members = rendezvous_members(program)
    users: dict[str, list[set[int]]] = defaultdict(list)
    for index, actor in enumerate(program.actors):
        together = (index,) if actor.rendezvous is None else members[actor.rendezvous]
        for name in {name for name, nbytes in actor.work.demands if nbytes > 0}:
            users[name].append({stream_of[member] for member in together})
    return users


def _stream_of(program: Program) -> dict[int, int]:
    return {actor: index for index, stream in enumerate(program.streams) for actor in set(stream.sequence)}


def _demands(program: Program) -> list[dict[str, int]]:
    """By actor, if it is the first of its rendezvous or alone: the bytes that an act moves through each resource."""
    members = rendezvous_members(program)
    found: list[dict[str, int]] = [{} for _ in program.actors]
    for index, actor in enumerate(program.actors):
        together = (index,) if actor.rendezvous is None else members[actor.rendezvous]
        if together[0] == index:
            for name, nbytes in (demand for member in together for demand in program.actors[member].work.demands):
                if nbytes > 0:
                    found[index][name] = found[index].get(name, 0) + nbytes
    return found


class _Builder:
    """Numbers acts by actor, and nodes by the first actor of each, before they are put in order."""

    def __init__(self, program: Program, steps: int) -> None:
        self.program, self.steps = program, steps
        self.counts = np.array([actor.acts_per_step * steps for actor in program.actors], dtype=np.int64)
        self.first_of = np.cumsum(self.counts) - self.counts
        self.total = int(self.counts.sum())
        stream_of = _stream_of(program)
        self.stream_of = np.array([stream_of.get(index, -1) for index in range(len(program.actors))], dtype=np.int64)
        self.leader = np.arange(len(program.actors))
        for together in rendezvous_members(program).values():
            self.leader[list(together)] = together[0]
        self.actor = np.repeat(np.arange(len(program.actors)), self.counts)
        self.number = np.arange(self.total) - self.first_of[self.actor]
        self.node = self.first_of[self.leader[self.actor]] + self.number

        self.turns = [self._turns(stream.sequence, dynamic=stream.dynamic) for stream in program.streams]

    def graph(self) -> ActGraph:
        """All acts, in order."""
        self._check()
        waiting, awaited = self._edges()
        early = _through(self.node, awaited)
        leads = self.node == np.arange(self.total)
        order = _topological(_through(self.node, waiting), early, leads)
        if len(order) < np.count_nonzero(leads):
            self._refuse()
        place = np.full(self.total, -1, dtype=np.int64)
        place[order] = np.arange(len(order))
        first_act, acts = grouped(_through(place, self.node), len(order))
        act_place = np.empty(self.total, dtype=np.int64)
        act_place[acts] = np.arange(self.total)
        first_wait, edges = grouped(_through(act_place, waiting), self.total)
        latency_ns = np.array([actor.work.latency_ns for actor in self.program.actors], dtype=np.int64)
        rates, demands = self.program.resources, _demands(self.program)
        alone_ns = [max((time_alone_ns(n, rates[name]) for name, n in found.items()), default=0) for found in demands]
        return ActGraph(
            steps=self.steps,
            actor=self.actor[acts],
            number=self.number[acts],
            latency_ns=latency_ns[self.actor[acts]],
            transfer_ns=np.array(alone_ns, dtype=np.int64)[self.actor[order]],
            first_act=first_act,
            first_wait=first_wait,
            waits=_through(place, _through(early, edges)).astype(np.int32),
            shared=shared_resource(self.program),
        )

    def _check(self) -> None:
        """Every actor in one stream, as often as it acts; members of a rendezvous alike; acts to number in 32 bits."""
        turns = np.zeros(len(self.counts), dtype=np.int64)
        for sequence in self.turns:
            turns += np.bincount(sequence, minlength=len(turns))
        if (turns * self.steps != self.counts).any() or (self.counts != self.counts[self.leader]).any():
            self._refuse()
        if self.total > np.iinfo(np.int32).max:
            raise SweepRefusal("not for the sweep: too many acts", got=self.total, expected="fewer than 2^31")

    def _turns(self, sequence: tuple[int, ...], *, dynamic: bool) -> Integers:
        """The actors of one step of a stream, in order."""
        turns = np.array(sequence, dtype=np.int64)
        return np.repeat(turns, self.counts[turns] // self.steps) if dynamic else turns

    def _edges(self) -> tuple[Integers, Integers]:
        """(waiting act, awaited act) of all waits that the order of a stream does not imply."""
        position = np.empty(self.total, dtype=np.int64)
        waiting, awaited = [], []
        for sequence in self.turns:
            acts = self._acts(sequence)
            position[acts] = np.arange(len(acts))
            waiting.append(acts[1:])
            awaited.append(acts[:-1])
        late, early = self._credit_edges(position)
        return np.concatenate([*waiting, late]), np.concatenate([*awaited, early])

    def _acts(self, turns: Integers) -> Integers:
        """The acts of a stream whose step has these turns, in order."""
        by_actor = np.argsort(turns, kind="stable")
        begins = np.flatnonzero(np.diff(turns[by_actor], prepend=-1))
        nth = np.empty(len(turns), dtype=np.int64)
        nth[by_actor] = np.arange(len(turns)) - np.repeat(begins, np.diff(begins, append=len(turns)))
        step = np.arange(self.steps)[:, None] * (self.counts[turns] // self.steps)
        return np.asarray(self.first_of[turns] + nth + step, dtype=np.int64).ravel()

    def _credit_edges(self, position: Integers) -> tuple[Integers, Integers]:
        """What acts wait for because of registers; `position` is the place of each act in its stream."""
        rows = np.array(list(self._waits()), dtype=np.int64).reshape(-1, 5)
        waiter, shares, other, other_shares, shift = rows.T
        pieces = np.maximum(-(-self.counts[waiter] // shares) - shift, 0)
        if (pieces * other_shares > self.counts[other]).any():
            self._refuse()
        late, early, count = _spread(
            pieces,
            self.first_of[waiter] + shift * shares,
            shares,
            self.first_of[other] + other_shares - 1,
            other_shares,
            position,
            self.stream_of[waiter] == self.stream_of[other],
        )
        if count < 0:
            self._refuse()
        return late[:count], early[:count]

    def _waits(self) -> Iterator[tuple[int, int, int, int, int]]:
        """(actor, its acts per piece, another, that one's, shift): piece p waits for the other's piece p - shift."""
        registers = self.program.registers
        producer: dict[int, tuple[int, int]] = {}
        consumers: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for index, actor in enumerate(self.program.actors):
            for port in actor.writes:
                if port.register in producer:
                    raise PlanError("a register has two producers", where=registers[port.register].name, got=actor.name)
                producer[port.register] = index, port.acts_per_piece
            for port in actor.reads:
                consumers[port.register].append((index, port.acts_per_piece))
        for register, found in consumers.items():
            initial = registers[register].initial
            if register not in producer:
                if not initial:
                    self._refuse()
                continue
            for reader in found:
                yield *reader, *producer[register], initial
                yield *producer[register], *reader, registers[register].blocks - initial

    def _refuse(self) -> NoReturn:
        """Have admission say what is wrong."""
        admit(self.program, steps=self.steps)
        raise InternalError("the sweep finds no order of a program that is admitted")


@compiled
def _spread(
    pieces: Integers,
    waiting: Integers,
    every: Integers,
    awaited: Integers,
    other_every: Integers,
    position: Integers,
    same_stream: NDArray[np.bool_],
) -> tuple[Integers, Integers, int]:
    """(waiting acts, awaited acts, how many) of rows of so many pieces each; how many is -1 if a stream goes backwards.

    What the order of a stream implies is left out.
    """
    most = int(pieces[~same_stream].sum())
    late, early, count = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), 0
    for row in range(len(pieces)):
        for piece in range(pieces[row]):
            act, other = waiting[row] + piece * every[row], awaited[row] + piece * other_every[row]
            if not same_stream[row]:
                late[count], early[count] = act, other
                count += 1
            elif position[other] >= position[act]:
                return late, early, -1
    return late, early, count


def grouped(keys: Integers, count: int) -> tuple[Integers, Integers]:
    """(where each of `count` groups begins, and the end; indices in the order of their keys, ties as they come)."""
    first = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=count), out=first[1:])
    return first, _sorted_into(keys, first[:-1].copy())


@compiled
def _through(table: Integers, indices: Integers) -> Integers:
    """`table[indices]`, in one pass."""
    found = np.empty(len(indices), dtype=np.int64)
    for place in range(len(indices)):
        found[place] = table[indices[place]]
    return found


@compiled
def _sorted_into(keys: Integers, begins: Integers) -> Integers:
    order = np.empty(len(keys), dtype=np.int64)
    for index in range(len(keys)):
        order[begins[keys[index]]] = index
        begins[keys[index]] += 1
    return order


def _topological(waiting: Integers, awaited: Integers, leads: NDArray[np.bool_]) -> Integers:
    """Nodes in an order in which each comes after what it waits for (Kahn 1962), without those on cycles."""
    first, edges = grouped(awaited, len(leads))
    missing = np.bincount(waiting, minlength=len(leads))
    return _taken_in_order(first, waiting[edges], missing, leads)


@compiled
def _taken_in_order(first: Integers, followers: Integers, missing: Integers, leads: NDArray[np.bool_]) -> Integers:
    order = np.empty(len(leads), dtype=np.int64)
    known = 0
    for node in range(len(leads)):
        if leads[node] and missing[node] == 0:
            order[known] = node
            known += 1
    taken = 0
    while taken < known:
        node = order[taken]
        taken += 1
        for k in range(first[node], first[node + 1]):
            follower = followers[k]
            missing[follower] -= 1
            if missing[follower] == 0:
                order[known] = follower
                known += 1
    return order[:known]
