"""Worker: one rank's event loop. It drives the actor protocol under the wall clock; credits decide, and nothing else.

Compute runs inline, one act at a time. Movements between ranks are started and polled in between, so a rank has as
many of them under way as it has communication streams. Of several streams that could go on, communication goes
first, for others may wait for it; then static streams, in program order; then dynamic ones, by priority.

Where messages move only while they are asked after, a companion does that beside an act that computes (`companion`).

On a device with streams acts are issued in the order of the rank's launch list instead, ahead of what the device has
done (`executor.runtime.issuing`); it is the device that has several of them under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns, sleep

import numpy as np

from executor.runtime.acts import ActBinder, Load, Run, host_piece, memory
from executor.runtime.bitwise import SummationOrder
from executor.runtime.companion import Companion
from executor.runtime.finiteness import FinitenessProbe, NonFinite
from executor.runtime.hooks import Hooks
from executor.runtime.issuing import AHEAD, HandedAct, IssuedAct, Issuer
from executor.runtime.kernels.base import Kernels
from executor.runtime.pieces import Requests
from executor.runtime.registers import Registers
from executor.runtime.step_reports import StepReports
from executor.runtime.transport.base import HostArray, PeerError, PendingTransfer, Transport
from executor.runtime.urgency import by_urgency, communicates
from strategy.base.errors import EnvironmentLacks, InternalError, PlanError, RankFault, present
from strategy.graph.graph import Graph
from strategy.graph.ops.base import Array, OpDef
from strategy.program.program import ActKind, Program
from strategy.program.protocol import Act, Protocol
from strategy.sbp.ragged import Rows

Record = tuple[int, int, int, tuple[int, ...], tuple[int, ...], int, int, int]
"""(actor, stream, number, read blocks, write blocks, ready_ns, start_ns, end_ns), times by `perf_counter_ns`.

That clock is the node's monotonic clock: records of the processes of a node compare. An act is *ready* when its
credits suffice and its stream is idle; the wait until it starts is the host's.
"""


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
        sums_in: add up micro-batches in one tree (see `bitwise`), in this order; on the host.
        hold_updates: leave out the updates of a step whose gradients are not finite (see `finiteness`); on the host.
        ahead: acts that the host may be ahead of a device with streams.
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
        sums_in: SummationOrder | None = None,
        ahead: int = AHEAD,
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
        self._acts = ActBinder(
            program,
            graph,
            rank,
            self.registers,
            transport,
            kernels,
            registry,
            load,
            hold_updates=hold_updates,
            sums_in=sums_in,
        )
        mine = [index for index, actor in enumerate(program.actors) if actor.rank == rank]
        host = [index for index in mine if kernels.streams is not None and self._acts.is_host(index)]
        self.protocol = Protocol(program, steps=0, ranks=[rank], host=host)
        self.issuer: Issuer | None = None
        if kernels.streams is not None:
            batched = [index for index in mine if self._acts.is_batched(index)]
            staged = {index: count for index in mine if (count := self._acts.buffers(index))}
            self.issuer = Issuer(
                program,
                rank,
                kernels.streams,
                host=host,
                staged=staged,
                timed=record,
                ahead=ahead,
                batched=batched,
            )
        self._probe: FinitenessProbe | None = None
        self._bound = False
        self._repeating: frozenset[int] = frozenset()
        self._runs: list[dict[tuple[int, ...], Run]] = [{} for _ in program.actors]
        self._acts_per_step = [actor.acts_per_step for actor in program.actors]
        self._first_act = [first_step * acts for acts in self._acts_per_step]
        self._order = by_urgency(program, self.protocol.streams)
        self._heads: list[int | None] = [None] * len(program.streams)
        self._ready_ns = [0] * len(program.streams)
        self._flights: list[_Flight] = []
        self._left: dict[int, int] = {}
        self._acts_in_step = sum(self._acts_per_step[a] for s in self.protocol.streams for a in _actors(program, s))
        steps_ahead = 1 if self.issuer is None else self.issuer.laps
        self._reports = StepReports(program, self.registers, kernels, reports, steps_ahead)
        self._current = (0, 0)
        self._computes = [actor.kind is ActKind.COMPUTE for actor in program.actors]
        self._speaking = [stream for stream in self._order if communicates(program, stream)]
        listens = self.issuer is None and transport.waits_for_calls and bool(self._speaking)
        self._companion = Companion(self._go_on_beside) if listens else None
        self._ended: list[int] = []
        self._is_beside = False

    def run(self, *, steps: int) -> None:
        """Go on for `steps` more steps, and return when all their acts are done.

        Raises:
            RankFault: an act failed, or nothing happened for `stall_s`: with actor and step.
            PeerError: another rank failed.
        """
        first = self.protocol.steps
        self.protocol.extend(steps)
        self._left.update((step, self._acts_in_step) for step in range(first, first + steps))
        if self._acts.updates is not None:
            self._acts.updates.held = False
        if self.issuer is not None:
            self._bind_all()
            repeating = frozenset[int]() if self._probe is not None else self._repeating
            self.issuer.group(repeating, self._reports.actors, timed=self._record)
            self.issuer.extend(steps)
        self._look(self.protocol.streams, perf_counter_ns())
        try:
            # What is not finite is the graph's business: its verdict on the step, and the loss that it reports.
            with np.errstate(over="ignore", invalid="ignore"), self._companion or nullcontext():
                self._drive()
                if self.issuer is not None:
                    self.issuer.join()
        except (RankFault, PeerError, EnvironmentLacks):
            self.transport.abort()
            raise
        except Exception as error:
            self.transport.abort()
            raise self._fault(*self._current, f"{type(error).__name__}: {error}") from error

    def count_from(self, step: int) -> None:
        """Count the acts to come as those of training step `step` and the following; between calls of `run`."""
        self._first_act = [(step - self.protocol.steps) * acts for acts in self._acts_per_step]

    @property
    def held_updates(self) -> bool:
        """Whether the updates of the last `run` were left out."""
        return self._acts.updates is not None and self._acts.updates.held

    def find_non_finite(self) -> NonFinite | None:
        """Run one more step; the first act of it on this rank that writes what is not finite."""
        self._probe = FinitenessProbe(self.program, self._read_block)
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

    @property
    def summation_nbytes(self) -> int:
        """Bytes of sums in one tree, beside the registers' `nbytes` and the scratch."""
        return self._acts.summation_nbytes

    def read(self, name: str, block: int = 0) -> HostArray:
        """A copy of a block of this rank's register `name`, a ragged one written out; between calls of `run`."""
        return self._read_block(self.registers.index(name), block)

    def _read_block(self, register: int, block: int) -> HostArray:
        piece = self.registers.block(register, block)
        if isinstance(piece, np.ndarray):
            return piece.copy()
        host = host_piece(self._kernels, piece)
        self._kernels.download(memory(piece), memory(host))
        self._kernels.wait()
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
            host = self._kernels.host_like(array)
            np.copyto(host, value)
            self._kernels.upload(host, array)
            self._kernels.wait()

    def _drive(self) -> None:
        protocol, go_on = self.protocol, self._begin_next if self.issuer is None else self._launch_next
        idle_since_ns, told = 0, False
        while protocol.remaining:
            moved = bool(self._flights) and self._poll()
            moved |= go_on()
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

    def _begin_next(self) -> bool:
        """Begin an act of the most urgent stream that has one ready; whether there was any."""
        protocol, heads = self.protocol, self._heads
        for stream in self._order:
            if heads[stream] is not None:
                head = protocol.head(stream) if self.program.streams[stream].dynamic else heads[stream]
                heads[stream] = None
                self._begin(present(head, "an actor of a stream that may go on"), stream)
                return True
        return False

    def _launch_next(self) -> bool:
        """Issue the next run of the launch list, if it may be; whether anything went on."""
        issuer, protocol = present(self.issuer, "what hands acts to the device"), self.protocol
        run, moved = issuer.next_run, False
        if not run or run[0] in issuer.host or issuer.is_ahead or self._probe is not None:
            for issued in issuer.ended():
                moved = True
                self._end_issued(issued)
        if not run or issuer.is_ahead or (self._probe is not None and issuer.oldest() is not None):
            return moved
        stream = protocol.stream_of(run[0])
        if not issuer.host_may_go_on() or protocol.is_busy(stream) or not protocol.may_act(run[0]):
            return moved
        self._ready_ns[stream] = perf_counter_ns()
        if run[0] in issuer.host:
            self._begin(run[0], stream)
        else:
            self._launch(run, stream)
        return True

    def _begin(self, actor: int, stream: int) -> None:
        """Issue an act and run it, or start its movements."""
        act, number, run = self._issue(actor, stream)
        start_ns = perf_counter_ns()
        if self._companion is not None and self._flights and self._computes[actor]:
            requests = self._companion.beside(partial(run, number))
            self._current = (actor, act.number)
        else:
            requests = run(number) if self.issuer is None else self._on_host(act, run, number)
        if requests is None:
            self._end(act, self._ready_ns[stream], start_ns, perf_counter_ns())
            return
        flight = _Flight(act, self._ready_ns[stream], start_ns, requests)
        self._flights.append(flight)
        self._advance(flight)

    def _go_on_beside(self) -> None:
        """Go on with messages while an act computes, which is not this thread's; steps end where that one is."""
        self._is_beside = True
        while self._poll() | self._speak():
            pass
        self._is_beside = False

    def _speak(self) -> bool:
        """Begin an act of a stream of communication that has one ready; whether there was any."""
        for stream in self._speaking:
            actor = self._heads[stream]
            if actor is not None:
                self._heads[stream] = None
                self._begin(actor, stream)
                return True
        return False

    def _issue(self, actor: int, stream: int) -> tuple[Act, int, Run]:
        """The next act of an actor, its number in the training, and what runs it."""
        act = self.protocol.issue(stream, actor)
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
        return act, number, run

    def _launch(self, actors: Sequence[int], stream: int) -> None:
        """Hand a run of acts to the device; its last may be one of which something is reported."""

        def take() -> list[HandedAct]:
            found: list[HandedAct] = []
            for actor in actors:
                if not self.protocol.may_act(actor):
                    raise InternalError(f"{self.program.actors[actor].name} is of a run and may not act yet")
                act, number, run = self._issue(actor, stream)
                self.protocol.issued(act)
                found.append((act, partial(self._hand_over, number, run)))
            return found

        present(self.issuer, "what hands acts to the device").issue(take, self._reports.order_copies)

    def _hand_over(self, number: int, run: Run) -> None:
        """See that all of an act is ordered on the stream."""
        for request in run(number) or ():
            if not request.test():
                raise InternalError(f"{request.describe()}: not in stream order")

    def _on_host(self, act: Act, run: Run, number: int) -> Requests | None:
        """The host's own act beside a device; what the device does in it is waited for."""
        issuer = present(self.issuer, "what hands acts to the device")
        issuer.leave_to_host()
        with issuer.on_stream(act):
            requests = run(number)
            if requests is None and self._acts.touches_device(act.actor):
                self._kernels.wait()
        return requests

    def _end_issued(self, issued: IssuedAct) -> None:
        """An act that the device has done."""
        begin_ns, end_ns = present(self.issuer, "what hands acts to the device").times_ns(issued)
        self._end(issued.act, min(issued.issued_ns, begin_ns), begin_ns, end_ns)

    def _bind_all(self) -> None:
        """Bind every act that there will be, so that no step that follows has to make anything."""
        if self._bound:
            return
        self._bound = True
        self._reports.make_buffers()
        actors = dict.fromkeys(present(self.issuer, "a launch list").launches)
        self._acts.assign_workspaces({a: next(iter(self.protocol.choices_of_blocks(a))) for a in actors})
        for actor in actors:
            for reads, writes in self.protocol.choices_of_blocks(actor):
                self._runs[actor][reads + writes] = self._acts.bind(actor, reads, writes)
        # What is kept from act to act was made on no stream of an act.
        self._kernels.wait()
        self._repeating = self._acts.repeating

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
            # What the host gives the device meanwhile, copies and waits for them, is on the act's own stream.
            with nullcontext() if self.issuer is None else self.issuer.on_stream(flight.act):
                flight.request = next(flight.requests, None)
            if flight.request is None:
                self._flights.remove(flight)
                self._end(flight.act, flight.ready_ns, flight.start_ns, perf_counter_ns())
                break
        return moved

    def _end(self, act: Act, ready_ns: int, start_ns: int, end_ns: int) -> None:
        """Pass on the credits of an act, and see what may follow it."""
        actor, number = act.actor, act.number
        if self._record:
            row = (actor, act.stream, number, act.read_blocks, act.write_blocks, ready_ns, start_ns, end_ns)
            self.records.append(row)
        if self._probe is not None:
            self._probe(act)
        step = number // self._acts_per_step[actor]
        if actor in self._reports.actors:
            self._reports.take(step, act)
        self._look(self.protocol.done(act), end_ns)
        self._left[step] -= 1
        if not self._left[step]:
            self._ended.append(step)
        if self._ended and not self._is_beside:
            for ended in self._ended:
                self._finish(ended)
            self._ended.clear()

    def _look(self, streams: Sequence[int], now_ns: int) -> None:
        """See which streams may go on since `now_ns`. A head that is ready stays ready until it is issued."""
        if self.issuer is not None:
            return
        heads = self._heads
        for stream in streams:
            if heads[stream] is None:
                actor = self.protocol.head(stream)
                if actor is not None:
                    heads[stream] = actor
                    self._ready_ns[stream] = now_ns

    def _finish(self, step: int) -> None:
        del self._left[step]
        self.steps_done = step + 1
        reports = self._reports.of_step(step)
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
        protocol = self.protocol
        actor = next(a for s in protocol.streams for a in self.program.streams[s].sequence if protocol.unfinished(a))
        reasons = [f"{why}, of {self.program.actors[other].name}" for other, why in protocol.waits_for(actor)]
        wants = "; ".join(reasons) or "needs a piece that no actor writes"
        return actor, protocol.acts_issued[actor], f"{wants}; was the program admitted?"

    def _fault(self, actor: int, number: int, reason: str) -> RankFault:
        step = (self._first_act[actor] + number) // self._acts_per_step[actor] + 1
        return RankFault(self.rank, self.program.actors[actor].name, step, reason)


def _actors(program: Program, stream: int) -> set[int]:
    return set(program.streams[stream].sequence)
