"""One rank's strict device: its streams, events and memory, and the kernels that run on it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.runtime.acts import memory
from executor.runtime.kernels.bound_act import BoundAct
from executor.runtime.kernels.gpu.table import ON_ROWS, UPDATES
from executor.runtime.worker import Worker
from executor.runtime.workspaces import AssignedScratch
from strategy.graph.ops.base import Call, OpDef, Workspace
from strategy.graph.ops.half_precision import run_act, scratch_of_act
from strategy.graph.ops.on_rows import alike
from strategy.graph.ops.scratch import ScratchSizes
from strategy.program.program import LoadTask
from strategy.sbp.ragged import Rows
from strategy.sbp.tensor import INDEX_NBYTES
from tests.support.strict_device.arrays import DeviceArray, DeviceModule
from tests.support.strict_device.host_memory import HostMemory
from tests.support.strict_device.order import HOST, Memories, Memory, Order, OrderFault, Use, nothing
from tests.support.strict_device.world import Job, Queue, StrictEvent, World

Piece = DeviceArray | NDArray[Any] | Rows
Graph = list[tuple[Callable[[], object], Sequence[Piece], Sequence[Piece], str]]
_WITH_STEP = 4
"""Inputs of an update that is told which step it is."""
_NEVER_COUNT = ("sgd", "adagrad")
_BY_NUMBER = ("dropout", "add_dropped", "learning_rate")


@dataclass(eq=False)
class StrictStream:
    """A stream of a strict device, and its place in clocks."""

    queue: Queue
    place: int
    awaited: dict[StrictEvent, int] = field(default_factory=dict)
    """Events that it has waited for, and how often they had been recorded then."""


class StrictDevice:
    """See `executor.runtime.streams.DeviceStreams`.

    Of every wait it also finds out whether its act would be refused without: `tried` are how many, `missed` those that
    nothing would have been said of.
    """

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        self.tried = 0
        self.missed: list[str] = []
        self.order = Order()
        self.memories = Memories()
        self.host_memory = HostMemory()
        self.batches: list[int] = []
        """Updates of every launch of some."""
        self._updates: list[tuple[Callable[[], object], Sequence[Piece], Sequence[Piece]]] = []
        self.steady = False
        """From the first act on: what is allocated, freed or loaded then makes a real device stand still."""
        self._acts: list[tuple[int, int]] = []
        self._captured: Graph | None = None
        self._fresh = False
        self._announced_before = 0
        self.replayed = 0
        """Acts' work that came from graphs."""
        self._worker: Worker | None = None
        self._tokens = Memory(np.zeros(0, np.uint8))
        """A byte for every block, so that pieces of no bytes are in order, too, and for every stream."""
        self._first_token: list[int] = []
        self._uses_of_acts: dict[tuple[int, tuple[tuple[int, ...], tuple[int, ...]]], list[Use]] = {}
        """By actor and blocks."""
        self._current = self.open("default")
        self.in_host_act = False
        self._loads = False

    def attach(self, worker: Worker) -> None:
        """The worker whose acts it is given."""
        self._worker = worker
        blocks = [register.blocks for register in worker.program.registers]
        self._first_token = np.concatenate(([0], np.cumsum(blocks)))[:-1].tolist()
        self._tokens = Memory(np.zeros(sum(blocks) + len(worker.program.streams), np.uint8))

    def announce(self, actor: int, number: int) -> None:
        """The worker begins an act."""
        assert self._worker is not None
        self.look_for_host_writes()
        if self._announced_before:
            self._announced_before -= 1  # it was, by its graph
            return
        self._acts.append((actor, number))
        self._loads = isinstance(self._worker.program.actors[actor].task, LoadTask)
        self.steady = True

    def rest(self) -> None:
        """The worker is not running."""
        self.steady = self._loads = False

    # Streams.

    def open(self, name: str) -> StrictStream:
        """A new stream."""
        self._refuse_if_steady("a stream is made")
        return StrictStream(self.world.queue(self.rank, name), self.order.stream(name))

    def event(self, *, timed: bool) -> StrictEvent:
        """A new event."""
        self._refuse_if_steady("an event is made")
        return StrictEvent()

    @contextmanager
    def use(self, stream: StrictStream) -> Iterator[None]:
        """Whatever is issued inside goes there; the acts that were announced are checked first.

        Where none was, the host goes on with an act of its own, or a graph is replayed.
        """
        before, self._current = self._current, stream
        self.order.turn(stream.place)
        self.in_host_act = True
        if self._acts:
            self._check_acts(stream)
        yield
        self.look_for_host_writes()
        self.order.without(HOST)  # of what the next act waits for alone it is found out whether that is needed
        self._current, self.in_host_act = before, False

    def look_for_host_writes(self) -> None:
        """What the host has written by itself, it must have been allowed to write.

        Raises:
            OrderFault: the device may still use what was there.
        """
        found = list(self.host_memory.written())
        if found:
            self.order.turn(HOST)
            self.order.use(HOST, found)

    def _check_acts(self, stream: StrictStream) -> None:
        """Those of one run: what it waits for, it waits for before the first."""
        assert self._worker is not None
        acts, self._acts = self._acts, []
        self.in_host_act = acts[0][0] in self._worker.issuer.host
        who = HOST if self.in_host_act else stream.place
        self.order.turn(who)
        self._use(who, [self._uses_of_act(*act) for act in acts])

    def _use(self, who: int, acts: list[list[Use]]) -> None:
        """Allow uses of one act after the other, and see for which waits they are; those are then forgotten."""
        clocks = self.order.without(who)
        needed = [False] * len(clocks)
        for uses in acts:
            for left_out, clock in enumerate(clocks):
                needed[left_out] |= any(one.unknown_to(clock) for one in uses)
            self.order.use(who, uses)
        self.tried += len(clocks)
        for left_out in (number for number, found in enumerate(needed) if not found):
            self.missed.append(f"rank {self.rank}: {self.order.name(who)} {acts[0][0].what}, wait {left_out}")

    def _uses_of_act(self, actor: int, number: int) -> list[Use]:
        assert self._worker is not None
        blocks = self._worker.protocol.blocks_of(actor, number)
        found = self._uses_of_acts.get((actor, blocks))
        if found is None:
            found = self._uses_of_acts[actor, blocks] = list(self._uses_of_blocks(actor, *blocks))
        return found

    def _uses_of_blocks(self, actor: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> Iterator[Use]:
        assert self._worker is not None
        found, registers = self._worker.program.actors[actor], self._worker.registers
        turn = self._tokens.raw.size - len(self._worker.program.streams) + self._worker.protocol.stream_of(actor)
        yield Use(self._tokens, turn, turn + 1, True, f"runs {found.name}")
        for ports, used, to_write in ((found.reads, reads, False), (found.writes, writes, True)):
            for port, block in zip(ports, used, strict=True):
                what = f"{'writes' if to_write else 'reads'} {self._worker.program.registers[port.register].name}"
                token = self._first_token[port.register] + block
                yield Use(self._tokens, token, token + 1, to_write, f"in {found.name} {what}")
                piece = memory(registers.block(port.register, block))
                yield from self.uses([piece], writes=to_write, what=f"in {found.name} {what}")

    def record(self, event: StrictEvent, stream: StrictStream) -> None:
        """An event behind what the stream has."""
        self.launch_updates()
        if self._captured is not None:
            return  # of time alone
        event.recorded += 1
        event.clock = self.order.clocks[stream.place].copy()
        generation = event.recorded

        def run() -> None:
            event.passed = max(event.passed, generation)

        self._give(stream, Job(run))

    def wait(self, stream: StrictStream, event: StrictEvent) -> None:
        """Let a stream wait. Acts that are launched together have one event: who has waited for one, has for all."""
        generation = event.recorded
        if stream.awaited.get(event) != generation:
            stream.awaited[event] = generation
            self.order.learn(stream.place, nothing() if event.clock is None else event.clock)
        self._give(stream, Job(lambda: None, lambda: event.passed >= generation))

    def query(self, event: StrictEvent) -> bool:
        """A poll, meanwhile devices may go on; the host learns nothing that it may build on."""
        self.look_for_host_writes()
        self.world.advance()
        return event.passed >= event.recorded

    def synchronize(self, event: StrictEvent) -> None:
        """The host may build on what came before the event, which has passed."""
        if event.passed < event.recorded:
            raise OrderFault("the host stands still for an event instead of polling it")
        self.order.learn(HOST, nothing() if event.clock is None else event.clock)

    def capture(self, stream: StrictStream, run: Callable[[], None]) -> Graph:
        """What is given meanwhile is kept, and not done."""
        self.launch_updates()
        self._captured = []
        run()
        self.launch_updates()
        found, self._captured, self._fresh = self._captured, None, True
        return found

    def replay(self, graph: Graph, stream: StrictStream) -> None:
        """Give the stream all of it; its acts may be announced later."""
        self.launch_updates()
        self._check_replayed(stream)
        self.replayed += len(graph)
        for run, reads, writes, what in graph:
            self.compute(run, reads, writes, what)

    def _check_replayed(self, stream: StrictStream) -> None:
        """Look at the acts of the next run, if they have not been announced yet."""
        assert self._worker is not None
        issuer, protocol = self._worker.issuer, self._worker.protocol
        assert issuer is not None
        if self._fresh:
            self._fresh = False  # captured just now, from acts that were announced
            return
        issued = Counter[int]()
        for actor in issuer.next_run:
            self._acts.append((actor, protocol.acts_issued[actor] + issued[actor]))
            issued[actor] += 1
        self._announced_before = len(self._acts)
        self._check_acts(stream)

    def time_ns(self, event: StrictEvent) -> int:
        """Nothing is timed."""
        return 0

    event_cost_ns = 0

    # What runs.

    def compute(self, run: Callable[[], object], reads: Sequence[Piece], writes: Sequence[Piece], what: str) -> None:
        """Something for the current stream."""
        self.launch_updates()
        if self._captured is not None:
            self._captured.append((run, reads, writes, what))
            return
        self.look_for_host_writes()
        self.order.turn(self._current.place)
        self.order.use(self._current.place, self.uses(reads, writes=False, what=f"reads in {what}"))
        self.order.use(self._current.place, self.uses(writes, writes=True, what=f"writes in {what}"))
        written = [piece for piece in writes if isinstance(piece, np.ndarray)]

        def job() -> None:
            run()
            for piece in written:
                self.host_memory.write(piece)

        self._give(self._current, Job(job))

    def hold_update(self, run: Callable[[], object], reads: Sequence[Piece], writes: Sequence[Piece]) -> None:
        """An update that waits for others, until anything else is given to the device."""
        self._updates.append((run, reads, writes))

    def launch_updates(self) -> None:
        """Those that wait, as one launch."""
        held, self._updates = self._updates, []
        if held:
            self.batches.append(len(held))
            reads = [piece for _, some, _ in held for piece in some]
            writes = [piece for _, _, some in held for piece in some]
            self.compute(lambda: [run() for run, _, _ in held], reads, writes, "updates")

    def read_counts(self, rows: Sequence[Rows], what: str) -> list[int]:
        """How many rows there are, of which the host waits for what the current stream has to tell: in its own acts."""
        if not self.in_host_act:
            raise OrderFault(f"{what}: ragged rows in an act that is not the host's")
        self.wait_for_stream()
        heads = [one.raw[:INDEX_NBYTES] for one in rows]
        self.on_host(heads, [], f"{what}, for the count of rows")
        return [int(head.inside.view(np.int64)[0]) for head in heads]

    def on_host(self, reads: Sequence[Piece], writes: Sequence[Piece], what: str) -> None:
        """The host itself uses memory that the device uses, too."""
        self.order.turn(HOST)
        self.order.use(HOST, self.uses(reads, writes=False, what=f"reads in {what}"))
        self.order.use(HOST, self.uses(writes, writes=True, what=f"writes in {what}"))

    def filled(self, host: NDArray[Any]) -> None:
        """The host has filled memory that goes to the device, unless that was done by an act before."""
        if self._loads:
            self.order.turn(HOST)
            self._use(HOST, [list(self.uses([host], writes=True, what="fills a buffer"))])

    def meet(self, job: Job) -> Queue:
        """A call of the collective library for the current stream."""
        self._give(self._current, job)
        return self._current.queue

    def wait_for_stream(self) -> None:
        """Let the host wait until the current stream has done all."""
        if not self.in_host_act:
            self._refuse_if_steady("the host waits for a stream")
        done = StrictEvent()
        self.record(done, self._current)
        while not self.query(done):
            if self.world.rests and done.passed < done.recorded:
                raise OrderFault("the host stands still for a stream that waits for other ranks")
        self.synchronize(done)
        self.order.without(HOST)

    def allocate(self, shape: Any, dtype: Any) -> DeviceArray:
        """Memory of the device."""
        self._refuse_if_steady("memory is allocated")
        inside = np.empty(shape, dtype)
        raw = inside.reshape(-1).view(np.uint8)
        raw.fill(0xFF)
        self.memories.add(Memory(raw))
        return DeviceArray(self, inside)

    def pinned(self, shape: Any, dtype: Any) -> NDArray[Any]:
        """Memory of the host that the device can use."""
        self._refuse_if_steady("memory of the host is pinned")
        found = self.host_memory.new(math.prod(shape) * np.dtype(dtype).itemsize)
        self.memories.add(found)
        return found.raw.view(dtype).reshape(shape)

    def uses(self, pieces: Sequence[Piece], *, writes: bool, what: str) -> Iterator[Use]:
        """Where arrays lie; those that the device does not know are refused."""
        for piece in pieces:
            held = memory(piece)
            inside = held.inside if isinstance(held, DeviceArray) else held
            if inside.size:
                found = held.place if isinstance(held, DeviceArray) else self.memories.place(inside)
                if found is None:
                    raise OrderFault(f"{what}: an array of NumPy in the plan of a device")
                yield Use(*found, writes, what)

    def _give(self, stream: StrictStream, job: Job) -> None:
        stream.queue.jobs.append(job)

    def _refuse_if_steady(self, what: str) -> None:
        if self.steady:
            raise OrderFault(f"{what} in a steady step")


class _Elsewhere:
    """NumPy under another name: ops go the ways that they have for devices, not those for a host's caches."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


ELSEWHERE = _Elsewhere()


def _inside(piece: Any) -> Any:
    """What NumPy computes with: the memory of a piece of the device."""
    if isinstance(piece, Rows):
        return Rows(ELSEWHERE, piece.raw.inside, piece.spec, piece.box)
    return piece.inside


def follows_number(definition: OpDef, call: Call) -> bool:
    """Whether an act may follow from its number: it draws, or may count updates by itself."""
    told = definition.kind in UPDATES and len(call.inputs) == _WITH_STEP
    return definition.kind in _BY_NUMBER or (bool(call.updates) and definition.kind not in _NEVER_COUNT and not told)


class StrictKernels:
    """See `executor.runtime.kernels.base.Kernels`: NumPy on the memory of a strict device."""

    host = False
    batched = tuple(UPDATES)

    def __init__(self, device: StrictDevice) -> None:
        self.streams = device
        self.xp = DeviceModule(device)
        self._scratch: dict[int, tuple[AssignedScratch, AssignedScratch]] = {}

    def wait(self) -> None:
        """Wait for the current stream."""
        self.streams.wait_for_stream()

    def bind(self, definition: OpDef, call: Call) -> BoundAct:
        """An op on the current stream."""
        return BoundAct(lambda: self._run(definition, call), repeats=not follows_number(definition, call))

    def _run(self, definition: OpDef, call: Call) -> None:
        operands, written = (*call.inputs, *call.updates), (*call.outputs, *call.updates)
        if any(isinstance(memory(piece), np.ndarray) for piece in (*operands, *written)):
            raise OrderFault(f"{definition.kind}: an array of NumPy in the plan of a device")
        ragged = [piece for piece in operands if isinstance(piece, Rows)]
        given, counts = call.workspace, list[int]()
        by_host = self.streams.in_host_act or not self.counts_rows(definition, call)
        if ragged or any(isinstance(piece, Rows) for piece in written):
            counts = self.streams.read_counts(ragged, definition.kind) if by_host else counts
            scratch, kept = Workspace(ELSEWHERE), ()
        elif isinstance(given, AssignedScratch):
            scratch, kept = self._inside(given), (given.anew, given.kept)
        else:
            raise OrderFault(f"{definition.kind}: scratch that was not declared")
        inside = replace(
            call,
            xp=ELSEWHERE,
            inputs=tuple(map(_inside, call.inputs)),
            outputs=tuple(map(_inside, call.outputs)),
            updates=tuple(map(_inside, call.updates)),
            workspace=scratch,
        )

        def run() -> None:
            held = [piece for piece in (*inside.inputs, *inside.updates) if isinstance(piece, Rows)]
            found = [piece.count for piece in held]
            if by_host and found != counts:
                raise OrderFault(
                    f"{definition.kind}: the host has read {counts} as counts of rows, and there are {found}"
                )
            if held and not by_host and not alike(held):
                raise OrderFault(f"{definition.kind}: operands have different rows in an act that is not the host's")
            with np.errstate(over="ignore", invalid="ignore"):
                run_act(definition, inside)

        if definition.kind in self.batched:
            self.streams.hold_update(run, operands, (*written, *kept))
            return
        self.streams.compute(run, operands, (*written, *kept), definition.kind)

    def counts_rows(self, definition: OpDef, call: Call) -> bool:
        """As kernels of ours do, which have no float64, though."""
        return definition.kind in ON_ROWS

    def _inside(self, given: AssignedScratch) -> AssignedScratch:
        """The scratch of an act, as NumPy's."""
        if id(given) not in self._scratch:
            anew, kept = given.anew.inside, given.kept.inside
            self._scratch[id(given)] = given, AssignedScratch(ELSEWHERE, given.owner, anew, kept)
        return self._scratch[id(given)][1]

    def scratch(self, definition: OpDef, call: Call) -> ScratchSizes:
        """As ops declare it."""
        return scratch_of_act(definition, call)

    def address(self, array: DeviceArray) -> int:
        """Where it begins."""
        return int(array.inside.__array_interface__["data"][0])

    def host_like(self, array: Piece) -> NDArray[Any]:
        """Pinned memory."""
        return self.streams.pinned(array.shape, array.dtype)

    def download(self, array: DeviceArray, host: NDArray[Any]) -> None:
        """To the host, on the current stream."""
        self.streams.compute(lambda: np.copyto(host, array.inside), [array], [host], "download")

    def upload(self, host: NDArray[Any], array: DeviceArray) -> None:
        """From the host, on the current stream."""
        self.streams.filled(host)
        self.streams.compute(lambda: np.copyto(array.inside, host), [host], [array], "upload")
