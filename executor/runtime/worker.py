"""Worker: one rank's event loop. It drives the actor protocol under the wall clock; credits decide, and nothing else.

Compute runs inline, one act at a time. Movements between ranks are started and polled in between, so a rank has as
many of them under way as it has communication streams. Of several streams that could go on, communication goes
first, for others may wait for it; then static streams, in program order; then dynamic ones, by priority.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, sleep

import numpy as np

from executor.runtime.acts import ActBinder, Load, Run, host_piece, memory
from executor.runtime.finiteness import FinitenessProbe, NonFinite
from executor.runtime.kernels.base import Kernels
from executor.runtime.pieces import Requests
from executor.runtime.registers import Registers
from executor.runtime.transport.base import HostArray, PeerError, PendingTransfer, Transport
from strategy.base.errors import EnvironmentLacks, PlanError, RankFault, present
from strategy.graph.graph import Graph
from strategy.graph.ops.base import Array, OpDef
from strategy.program.program import Program
from strategy.program.protocol import Act, Protocol
from strategy.sbp.ragged import Rows

Record = tuple[int, int, int, tuple[int, ...], tuple[int, ...], int, int, int]
"""(actor, stream, number, read blocks, write blocks, ready_ns, start_ns, end_ns), times by `perf_counter_ns`.

That clock is the node's monotonic clock: records of the processes of a node compare. An act is *ready* when its
credits suffice and its stream is idle; the wait until it starts is the host's.
"""

Reports = Mapping[str, HostArray]
"""Register name -> a copy of the last piece of a step."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a worker calls; each must be cheap.

    Attributes:
        on_act: before each act, with (actor, number since the start of the training): a heartbeat.
        on_step: after the last act of a step on this rank, with (step, reports).
        on_wait: when nothing has happened on this rank for a second, with what it waits for.
        delay: seconds to sleep before an act; tests shuffle timing with it.
    """

    on_act: Callable[[int, int], None] | None = None
    on_step: Callable[[int, Reports], None] | None = None
    on_wait: Callable[[str], None] | None = None
    delay: Callable[[int, int], float] | None = None


@dataclass(slots=True)
class _Flight:
    """An act whose movements are under way; `request` is the one waited for."""

    act: Act
    ready_ns: int
    start_ns: int
    requests: Requests
    request: PendingTransfer | None = None


_LONG_NS = 1_000_000_000
"""A rank for which nothing has happened for so long says that it waits."""


class Worker:
    """One rank of a program.

    Args:
        program: what all ranks do; it has been admitted, and its blocks have offsets.
        graph: the ops that its tasks name.
        rank: this rank.
        transport: this rank's, with the lanes of `program`.
        kernels: what runs ops.
        registry: op kind -> definition.
        load: fills the inputs of a loader's act.
        reports: names of registers of this rank whose last piece of each step is copied for `on_step`.
        hooks: what to call on the way.
        first_step: the training step that the first act belongs to; a resumed run goes on counting.
        shared: arrays of state registers that another worker of this rank has too, by name (see `Registers`).
        stall_s: raise when nothing has happened on this rank for so long.
        record: whether to keep a record per act, in the order of their ends.
        hold_updates: leave out the updates of a step whose gradients are not finite (see `finiteness`); on the host.
    """

    def __init__(
        self,
        program: Program,
        graph: Graph,
        rank: int,
        transport: Transport,
        kernels: Kernels,
        registry: Mapping[str, OpDef],
        load: Load,
        *,
        reports: Sequence[str] = (),
        hooks: Hooks | None = None,
        first_step: int = 0,
        shared: Mapping[str, Array] | None = None,
        stall_s: float = 60.0,
        record: bool = True,
        hold_updates: bool = False,
    ) -> None:
        self.program = program
        self.rank = rank
        self.transport = transport
        self.registers = Registers(program, rank, kernels, shared)
        self.records: list[Record] = []
        self.steps_done = 0
        self._kernels = kernels
        self._hooks = hooks or Hooks()
        self._stall_ns = int(stall_s * 1e9)
        self._record = record
        self._protocol = Protocol(program, steps=0, ranks=[rank])
        self._acts = ActBinder(
            program, graph, rank, self.registers, transport, kernels, registry, load, hold_updates=hold_updates
        )
        self._probe: FinitenessProbe | None = None
        self._runs: list[dict[tuple[int, ...], Run]] = [{} for _ in program.actors]
        self._acts_per_step = [actor.acts_per_step for actor in program.actors]
        self._first_act = [first_step * acts for acts in self._acts_per_step]
        self._order = _by_urgency(program, self._protocol.streams)
        self._heads: list[int | None] = [None] * len(program.streams)
        self._ready_ns = [0] * len(program.streams)
        self._flights: list[_Flight] = []
        self._left: dict[int, int] = {}
        self._acts_in_step = sum(self._acts_per_step[a] for s in self._protocol.streams for a in _actors(program, s))
        self._reported = _producers(program, {self.registers.index(name): name for name in reports})
        self._reports: dict[int, dict[str, HostArray]] = {}
        self._current = (0, 0)

    def run(self, *, steps: int) -> None:
        """Go on for `steps` more steps, and return when all their acts are done.

        Raises:
            RankFault: an act failed, or nothing happened for `stall_s`: with actor and step.
            PeerError: another rank failed.
        """
        first = self._protocol.steps
        self._protocol.extend(steps)
        self._left.update((step, self._acts_in_step) for step in range(first, first + steps))
        if self._acts.updates is not None:
            self._acts.updates.held = False
        self._look(self._protocol.streams, perf_counter_ns())
        try:
            # What is not finite is the graph's business: its verdict on the step, and the loss that it reports.
            with np.errstate(over="ignore", invalid="ignore"):
                self._drive()
        except (RankFault, PeerError, EnvironmentLacks):
            raise
        except Exception as error:
            raise self._fault(*self._current, f"{type(error).__name__}: {error}") from error

    def count_from(self, step: int) -> None:
        """Count the acts to come as those of training step `step` and the following; between calls of `run`."""
        self._first_act = [(step - self._protocol.steps) * acts for acts in self._acts_per_step]

    @property
    def held_updates(self) -> bool:
        """Whether the updates of the last `run` were left out."""
        return self._acts.updates is not None and self._acts.updates.held

    def find_non_finite(self) -> NonFinite | None:
        """Run one more step; the first act of it on this rank that writes what is not finite."""
        self._probe = FinitenessProbe(self.program, self.registers)
        self.run(steps=1)
        found, self._probe = self._probe.found, None
        return found

    def stop_recording(self) -> None:
        """Keep the records so far and no more: a long run would fill the memory with them."""
        self._record = False

    @property
    def scratch_nbytes(self) -> int:
        """Bytes of scratch arrays, beside the registers' `nbytes`."""
        return self._acts.scratch_nbytes

    def read(self, name: str, block: int = 0) -> HostArray:
        """A copy of a block of this rank's register `name`, a ragged one written out; between calls of `run`."""
        piece = self.registers.block(self.registers.index(name), block)
        if isinstance(piece, np.ndarray):
            return piece.copy()
        host = host_piece(self._kernels, piece)
        self._kernels.download(memory(piece), memory(host))
        copy: HostArray = host.dense() if isinstance(host, Rows) else host
        return copy

    def write(self, name: str, value: HostArray, block: int = 0) -> None:
        """Set a block of this rank's register `name`, such as a parameter's first piece; between calls of `run`.

        Raises:
            PlanError: the value has another shape or dtype than the register.
        """
        array = self.registers.block(self.registers.index(name), block)
        if (value.shape, value.dtype) != (array.shape, array.dtype):
            got, expected = f"{value.dtype}{list(value.shape)}", f"{array.dtype}{list(array.shape)}"
            raise PlanError("a register is given another array than it holds", where=name, got=got, expected=expected)
        if isinstance(array, np.ndarray):
            np.copyto(array, value)
        else:
            self._kernels.upload(value, array)

    def _drive(self) -> None:
        protocol, order, heads = self._protocol, self._order, self._heads
        idle_since_ns, told = 0, False
        while protocol.remaining:
            moved = bool(self._flights) and self._poll()
            for stream in order:
                if heads[stream] is not None:
                    self._begin(stream)
                    moved = True
                    break
            if moved:
                idle_since_ns, told = 0, False
                continue
            now_ns = perf_counter_ns()
            idle_since_ns = idle_since_ns or now_ns
            self.transport.pause(now_ns - idle_since_ns)
            if now_ns - idle_since_ns >= self._stall_ns:
                raise self._stalled(now_ns - idle_since_ns)
            if now_ns - idle_since_ns >= _LONG_NS and not told:
                told = True
                if self._hooks.on_wait is not None:
                    self._hooks.on_wait(self._wants()[2])

    def _begin(self, stream: int) -> None:
        """Issue the act at the head of a stream and run it, or start its movements."""
        head = self._protocol.head(stream) if self.program.streams[stream].dynamic else self._heads[stream]
        actor = present(head, f"a ready actor of stream {stream}")
        self._heads[stream] = None
        act = self._protocol.issue(stream, actor)
        self._current = (actor, act.number)
        number = self._first_act[actor] + act.number
        if self._hooks.on_act is not None:
            self._hooks.on_act(actor, number)
        if self._hooks.delay is not None:
            sleep(self._hooks.delay(actor, act.number))
        runs = self._runs[actor]
        blocks = act.read_blocks + act.write_blocks
        run = runs.get(blocks)
        if run is None:
            run = runs[blocks] = self._acts.bind(actor, act.read_blocks, act.write_blocks)
        start_ns = perf_counter_ns()
        requests = run(number)
        if requests is None:
            self._end(act, self._ready_ns[stream], start_ns)
            return
        flight = _Flight(act, self._ready_ns[stream], start_ns, requests)
        self._flights.append(flight)
        self._advance(flight)

    def _poll(self) -> bool:
        """Advance what is under way; whether anything moved."""
        moved = False
        for flight in tuple(self._flights):
            self._current = (flight.act.actor, flight.act.number)
            moved |= self._advance(flight)
        return moved

    def _advance(self, flight: _Flight) -> bool:
        """Go on with an act as far as its movements allow; whether that was anywhere."""
        moved = False
        while flight.request is None or flight.request.test():
            moved = True
            flight.request = next(flight.requests, None)
            if flight.request is None:
                self._flights.remove(flight)
                self._end(flight.act, flight.ready_ns, flight.start_ns)
                break
        return moved

    def _end(self, act: Act, ready_ns: int, start_ns: int) -> None:
        """Pass on the credits of an act, and see what may follow it."""
        end_ns = perf_counter_ns()
        actor, number = act.actor, act.number
        if self._record:
            row = (actor, act.stream, number, act.read_blocks, act.write_blocks, ready_ns, start_ns, end_ns)
            self.records.append(row)
        if self._probe is not None:
            self._probe(act)
        step = number // self._acts_per_step[actor]
        if actor in self._reported:
            self._report(step, act)
        self._look(self._protocol.done(act), end_ns)
        self._left[step] -= 1
        if not self._left[step]:
            self._finish(step)

    def _look(self, streams: Sequence[int], now_ns: int) -> None:
        """See which streams may go on since `now_ns`. A head that is ready stays ready until it is issued."""
        heads = self._heads
        for stream in streams:
            if heads[stream] is None:
                actor = self._protocol.head(stream)
                if actor is not None:
                    heads[stream] = actor
                    self._ready_ns[stream] = now_ns

    def _report(self, step: int, act: Act) -> None:
        """Copy what the act wrote, before its block can be written again."""
        for name, position in self._reported[act.actor]:
            self._reports.setdefault(step, {})[name] = self.read(name, act.write_blocks[position])

    def _finish(self, step: int) -> None:
        del self._left[step]
        self.steps_done = step + 1
        reports = self._reports.pop(step, {})
        if self._hooks.on_step is not None:
            self._hooks.on_step(step, reports)

    def _stalled(self, waited_ns: int) -> RankFault:
        """What nothing has come of for so long."""
        actor, number, wants = self._wants()
        return self._fault(actor, number, f"nothing happened for {waited_ns / 1e9:.1f} s: {wants}")

    def _wants(self) -> tuple[int, int, str]:
        """The act that this rank waits for, actor and number, and what that lacks."""
        waits = [
            f"{self.program.actors[flight.act.actor].name} waits for {flight.request.describe()}"
            for flight in self._flights
            if flight.request is not None
        ]
        if waits:
            oldest = min(self._flights, key=lambda flight: flight.start_ns).act
            return oldest.actor, oldest.number, "; ".join(waits)
        protocol = self._protocol
        actor = next(a for s in protocol.streams for a in self.program.streams[s].sequence if protocol.unfinished(a))
        reasons = [f"{why}, of {self.program.actors[other].name}" for other, why in protocol.waits_for(actor)]
        wants = "; ".join(reasons) or "needs a piece that no actor writes"
        return actor, protocol.issued[actor], f"{wants}; was the program admitted?"

    def _fault(self, actor: int, number: int, reason: str) -> RankFault:
        step = (self._first_act[actor] + number) // self._acts_per_step[actor] + 1
        return RankFault(self.rank, self.program.actors[actor].name, step, reason)


def _by_urgency(program: Program, streams: Sequence[int]) -> list[int]:
    """Streams of communication alone, then static, then dynamic ones."""

    def urgency(stream: int) -> tuple[bool, bool, int]:
        communicates = all(program.actors[actor].kind.is_communication for actor in program.streams[stream].sequence)
        return (not communicates, program.streams[stream].dynamic, stream)

    return sorted(streams, key=urgency)


def _actors(program: Program, stream: int) -> set[int]:
    return set(program.streams[stream].sequence)


def _producers(program: Program, wanted: Mapping[int, str]) -> dict[int, list[tuple[str, int]]]:
    """Actor -> (name, write port) of each register that it writes and that is wanted."""
    found: dict[int, list[tuple[str, int]]] = {}
    for index, actor in enumerate(program.actors):
        for position, port in enumerate(actor.writes):
            if port.register in wanted:
                found.setdefault(index, []).append((wanted[port.register], position))
    return found
