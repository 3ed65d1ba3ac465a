"""Plans on devices that do what they are given in any order that events allow; see the campaign `gpu-order`."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from executor.runtime.acts import ActBinder, _Place
from executor.runtime.collectives import prepare
from executor.runtime.transport.cuda_mpi import CudaMpiTransport
from executor.runtime.transport.loopback import LoopbackHub
from strategy.base.errors import RankFault
from strategy.graph.ops import REGISTRY
from strategy.graph.ops.base import Call, Workspace
from strategy.passes.mixed_precision import Precision
from strategy.program.event_waits import ActWaits, StepWaits
from strategy.program.program import ActKind, BoxingTask, OpTask
from strategy.sbp.sbp import Reduce
from tests.campaigns.gpu_order import STEPS, bits_off, case_of, check, numbers_off
from tests.support.long_parameters import long_but
from tests.support.random_plans import random_plan_case
from tests.support.strict_device.device import StrictDevice, StrictKernels
from tests.support.strict_device.order import HOST, Memory, Order, OrderFault, Use
from tests.support.strict_device.running import StrictRank, train_strictly
from tests.support.strict_device.transport import StrictTransport
from tests.support.strict_device.world import World

DATA, OFFLOADED, STAGES, COPIED = 8, 1, 9, 4
"""Seeds of plans of two ranks: one stage; updates on the host; two stages; copies to the host and back."""
FLOAT16, CODES, DROPPED, KEPT_CODES = 8, 410006, 410044, 420038
"""Cases of two or more ranks in halves, on codes of eight bits, and with dropout fused with what it is added to; and
one on codes that offloads activations."""
SUMS = 1
"""Seed of a plan of three ranks that add up."""
ADAMW = 5
"""Seed of a plan of one or two ranks that AdamW updates on the device."""
LAUNCHED_TOGETHER = 440671
"""Case of two ranks that update parameters in one launch, two of which wait for lists of gradients of one stream."""
BESIDE_OWNER = 62
"""Seed of a plan of two ranks in which one has nothing of a tensor that the other updates on the host."""


@pytest.mark.parametrize("seed", long_but([DATA, OFFLOADED, STAGES, COPIED], 1, 2))
def test_any_order_that_events_allow_gives_one_devices_numbers_and_every_wait_is_needed(seed: int) -> None:
    found: list[StrictRank] = []
    assert list(check(random_plan_case(seed, backend="cupy"), seed, found)) == []
    assert sum(one.device.tried for one in found) > 10


@pytest.mark.parametrize("seed", long_but([FLOAT16, CODES, DROPPED, KEPT_CODES, LAUNCHED_TOGETHER], 1, 2, 4))
def test_halves_codes_dropout_and_launches_of_several_acts_too(seed: int) -> None:
    found: list[StrictRank] = []
    assert list(check(case_of(seed), seed, found)) == []
    assert sum(one.device.tried for one in found) > 10


@pytest.mark.long
def test_numbers_that_an_order_changes_in_the_last_bit_are_found() -> None:
    """Of halves: a library that adds up in an order of its own rounds otherwise than one in the order of ranks."""
    case = random_plan_case(SUMS, backend="cupy", precision=Precision.BF16, ranks=(3,))
    found = train_strictly(case.plan, case.program, 0, steps=STEPS)
    at_once = train_strictly(case.plan, case.program, 0, steps=STEPS, at_once=True, in_rank_order=True)
    assert any(list(bits_off(one, other)) for one, other in zip(found, at_once, strict=True))


@pytest.mark.parametrize("seed", long_but([DATA, STAGES], 1))
def test_without_a_collective_library_movements_go_by_the_hosts(seed: int) -> None:
    case = random_plan_case(seed, backend="cupy")
    found = train_strictly(case.plan, case.program, seed, steps=STEPS, staged=True)
    assert all(one.device.missed == [] for one in found)
    assert list(numbers_off(case, found)) == []


@pytest.mark.parametrize("seed", long_but([OFFLOADED, STAGES, COPIED], 1))
def test_mpi_may_be_given_addresses_of_devices_when_the_host_has_waited_for_them(seed: int) -> None:
    case = random_plan_case(seed, backend="cupy")
    found = train_strictly(case.plan, case.program, seed, steps=STEPS, cuda_mpi=True)
    assert all(one.device.missed == [] for one in found)
    assert list(numbers_off(case, found)) == []
    comms = [one.trainer.worker.transport._comm for one in found]
    assert all(sum(comm.handed) for comm in comms)


@pytest.mark.parametrize("left_out", long_but(["before", "behind"], 0))
def test_a_host_that_hands_over_addresses_too_early_is_refused(monkeypatch: pytest.MonkeyPatch, left_out: str) -> None:
    """It does not wait before a movement; or not behind the last copy of an act."""
    case = random_plan_case(SUMS, backend="cupy", ranks=(3,))
    train = partial(train_strictly, case.plan, case.program, 0, steps=STEPS, cuda_mpi=True)
    assert all(one.device.missed == [] for one in train())
    if left_out == "before":
        given = CudaMpiTransport.__init__
        monkeypatch.setattr(CudaMpiTransport, "__init__", lambda self, *some: given(self, *some[:-1], lambda: None))
    else:
        monkeypatch.setattr(_Place, "waited_for", lambda _, start: start)
    with pytest.raises(RankFault, match=r"OrderFault: .* without waiting for stream"):
        train()


@pytest.mark.parametrize("side", ["by_stream", "by_host"])
def test_a_wait_that_is_left_out_is_refused(side: str) -> None:
    """The first of a steady step on rank 1, left out in the run itself."""
    case = random_plan_case(OFFLOADED, backend="cupy")
    left_out: list[ActWaits] = []

    def change(rank: int, waits: tuple[StepWaits, ...]) -> tuple[StepWaits, ...]:
        if rank != 1:
            return waits
        steady = list(waits[-1])
        position = next(i for i, act in enumerate(steady) if getattr(act, side))
        left_out.append(steady[position])
        steady[position] = replace(steady[position], **{side: getattr(steady[position], side)[1:]})
        return (*waits[:-1], tuple(steady))

    with pytest.raises(RankFault, match=r"rank 1 .*OrderFault: .* without waiting for"):
        train_strictly(case.plan, case.program, 0, steps=STEPS + 1, change=change)
    assert len(left_out) == 1


def lone() -> tuple[World, StrictDevice, StrictKernels]:
    """A device that no worker drives."""
    world = World(1, seed=0)
    device = StrictDevice(world, 0)
    return world, device, StrictKernels(device)


def test_a_stream_must_wait_for_what_another_wrote() -> None:
    _, device, kernels = lone()
    one, other = device.open("one"), device.open("other")
    array, event = kernels.xp.empty((4,), "float32"), device.event(timed=False)
    with device.use(one):
        array.fill(1)
    device.record(event, one)
    with (
        device.use(other),
        pytest.raises(OrderFault, match="stream other writes in fill without waiting for stream one"),
    ):
        array.fill(2)
    device.wait(other, event)
    with device.use(other):
        array.fill(2)


def test_the_host_must_wait_for_the_event_and_a_poll_is_no_wait() -> None:
    _, device, kernels = lone()
    array, event = kernels.xp.empty((4,), "float32"), device.event(timed=False)
    host = kernels.host_like(array)
    with device.use(stream := device.open("copies")):
        array.fill(3)
        kernels.download(array, host)
    device.record(event, stream)
    while not device.query(event):
        pass
    with pytest.raises(OrderFault, match="the host reads in a test without waiting for stream copies"):
        device.on_host([host], [], "a test")
    device.synchronize(event)
    device.on_host([host], [], "a test")
    assert host.tolist() == [3, 3, 3, 3]


def test_updates_that_follow_one_another_are_one_launch() -> None:
    case = random_plan_case(ADAMW, backend="cupy", ranks=(1, 2))
    found = train_strictly(case.plan, case.program, 0, steps=STEPS)
    assert list(numbers_off(case, found)) == []
    assert all(max(one.device.batches) > 1 for one in found)
    assert all(one.device.missed == [] for one in found)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("direction", ["download", "upload"])
def test_the_host_must_not_write_what_the_device_may_still_use(direction: str, seed: int) -> None:
    """A byte somewhere in a buffer of two ranks' devices each, written before the event is waited for, and after."""
    world, rng = World(2, seed), random.Random(seed)
    for rank in range(2):
        device = StrictDevice(world, rank)
        kernels = StrictKernels(device)
        array, event = kernels.xp.empty((rng.randint(1, 40),), "uint8"), device.event(timed=False)
        host = kernels.host_like(array)
        host[:] = 1
        with device.use(stream := device.open("copies")):
            array.fill(3)
            (kernels.download(array, host) if direction == "download" else kernels.upload(host, array))
        device.record(event, stream)
        while not device.query(event):
            pass
        place = rng.randrange(array.size)
        host[place] = 7
        with pytest.raises(OrderFault, match="the host writes memory of the host without waiting for stream copies"):
            device.look_for_host_writes()
        device.synchronize(event)
        host[place] = 8
        device.look_for_host_writes()


@pytest.mark.parametrize("seed", long_but(range(2)))
def test_a_rank_beside_the_owner_writes_its_scalars_on_the_host_when_the_device_has_read_them(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """They were written when the act was issued, and squared norms that were still to be added up were gone."""
    case = random_plan_case(BESIDE_OWNER, backend="cupy", ranks=(2,))
    found = train_strictly(case.plan, case.program, seed, steps=STEPS)
    assert list(numbers_off(case, found)) == []
    right = ActBinder.is_host

    def as_it_was(binder: ActBinder, index: int) -> bool:
        task = case.program.actors[index].task
        return not (isinstance(task, OpTask) and task.idle) and right(binder, index)

    monkeypatch.setattr(ActBinder, "is_host", as_it_was)
    with pytest.raises(RankFault, match="the host writes memory of the host without waiting for stream"):
        train_strictly(case.plan, case.program, seed, steps=STEPS)


def test_the_host_cannot_read_an_array_of_the_device() -> None:
    _, _, kernels = lone()
    with pytest.raises(TypeError, match="the host reads"):
        np.asarray(kernels.xp.empty((4,), "float32"))


@pytest.mark.parametrize("what", ["allocated", "pinned", "an event", "a stream", "waits for a stream"])
def test_a_steady_step_allocates_nothing_and_waits_for_nothing(what: str) -> None:
    _, device, kernels = lone()
    array = kernels.xp.empty((4,), "float32")
    device.steady = True
    acts = {
        "allocated": lambda: kernels.xp.empty((4,), "float32"),
        "pinned": lambda: kernels.host_like(array),
        "an event": lambda: device.event(timed=False),
        "a stream": lambda: device.open("late"),
        "waits for a stream": kernels.wait,
    }
    with pytest.raises(OrderFault, match=f"{what}.* in a steady step"):
        acts[what]()


def test_an_array_of_numpy_is_refused() -> None:
    _, device, kernels = lone()
    with pytest.raises(OrderFault, match="an array of NumPy"):
        kernels.xp.copyto(kernels.xp.empty((4,), "float32"), np.zeros(4, np.float32))
    transport = StrictTransport(device.world, device, {0: (0,)}, LoopbackHub(1).transport(0))
    with pytest.raises(OrderFault, match="an array of NumPy"):
        transport.exchange((0,), 0, [np.zeros(4)], [None])


def test_scratch_that_was_not_declared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops forget what they use."""
    for kind, definition in REGISTRY.items():
        monkeypatch.setitem(REGISTRY, kind, replace(definition, scratch=None))
    case = random_plan_case(DATA, backend="cupy")
    with pytest.raises(RankFault, match=r"asks for scratch '.*', \d+ bytes \((anew|kept)\), and has declared 0 in all"):
        train_strictly(case.plan, case.program, 0, steps=1)


def test_scratch_of_a_host_is_none_of_a_device() -> None:
    _, _, kernels = lone()
    x, y = (kernels.xp.empty((4,), "float32") for _ in range(2))
    call = Call(kernels.xp, {}, (x,), (y,), (), (), (), Workspace(np))
    with pytest.raises(OrderFault, match="relu: scratch that was not declared"):
        kernels.bind(REGISTRY["relu"], call).run()


def test_ranks_that_call_collectives_in_different_orders_are_named() -> None:
    world = World(2, seed=0)
    world.call(0, 7, (0, 1), "exchange")
    world.call(0, 8, (0, 1), "exchange")
    with pytest.raises(OrderFault, match=r"ranks 1 and 0 call collectives in different orders: call 1 is \(8"):
        world.call(1, 8, (0, 1), "exchange")


def test_ranks_that_reduce_otherwise_are_named() -> None:
    """The same call in the same place, of another dtype."""
    world, hub = World(2, seed=0), LoopbackHub(2)
    for rank, dtype in enumerate(("float32", "float64")):
        device = StrictDevice(world, rank)
        kernels = StrictKernels(device)
        transport = StrictTransport(world, device, {0: (0, 1)}, hub.transport(rank))
        terms = kernels.xp.zeros((4,), dtype)
        if rank == 0:
            transport.all_reduce((0, 1), 0, terms, terms, Reduce.SUM)
            continue
        with pytest.raises(OrderFault, match=r"call 1 is .*all_reduce sum of 4 float64.*all_reduce sum of 4 float32"):
            transport.all_reduce((0, 1), 0, terms, terms, Reduce.SUM)


@pytest.mark.parametrize("reduce", list(Reduce))
@pytest.mark.parametrize("dim", [0, 1])
def test_partial_to_split_is_one_call_of_the_library(reduce: Reduce, dim: int) -> None:
    """Rows in place, columns packed; the sum to the bit on all ranks, in the library's own order."""
    world, hub, found = World(3, seed=dim), LoopbackHub(3), []
    boxes = tuple(tuple((2 * i, 2 * i + 2) if d == dim else (0, 6) for d in range(2)) for i in range(3))
    task = BoxingTask((0, 1, 2), (((0, 6), (0, 6)),) * 3, boxes, reduce)
    terms = np.random.default_rng(dim).standard_normal((3, 6, 6))
    for rank in range(3):
        device = StrictDevice(world, rank)
        kernels = StrictKernels(device)
        transport = StrictTransport(world, device, {0: (0, 1, 2)}, hub.transport(rank))
        source, target = kernels.xp.empty((6, 6), "float64"), kernels.xp.empty((6, 2) if dim else (2, 6), "float64")
        source.inside[...] = terms[rank]
        start = prepare(ActKind.REDUCE_SCATTER, task, rank, 0, transport, source, target, Workspace(kernels.xp))
        with device.use(device.open("communication")):
            assert all(request.test() for request in start())
        found.append(target)
    while any(queue.jobs for queue in world.queues):
        world.advance()
    whole = {Reduce.SUM: np.add, Reduce.MIN: np.minimum, Reduce.MAX: np.maximum}[reduce].reduce(terms)
    for box, target in zip(boxes, found, strict=True):
        assert np.allclose(target.inside, whole[tuple(slice(*cut) for cut in box)], rtol=1e-12)
    assert [kind.split()[0] for calls in world._calls.values() for _, _, kind in calls] == ["reduce_scatter"] * 9


@pytest.mark.parametrize("seed", range(30))
def test_what_is_kept_of_uses_says_what_all_of_them_say(seed: int) -> None:
    """Uses of random bytes by streams that wait for random events: refused is what a list of all uses refuses."""
    rng, order, one = random.Random(seed), Order(), Memory(np.zeros(12, np.uint8))
    for number in range(4):
        order.stream(str(number))
    everyone, events, before, refused = [0, 1, 2, 3, HOST], [order.clocks[0].copy()], list[tuple[Use, int, int]](), 0
    for _ in range(300):
        who = rng.choice(everyone)
        if rng.random() < 0.5:
            order.learn(who, rng.choice(events[-6:]))
        order.turn(who)
        begin = rng.randrange(12)
        use = Use(one, begin, rng.randint(begin + 1, 12), rng.random() < 0.5, "uses")
        clocks = [order.clocks[who], *order.without(who)]
        meant = [past for past in before if past[0].begin < use.end and use.begin < past[0].end]
        meant = [past for past in meant if use.writes or past[0].writes]
        wanted = [any(position > clock[other] for _, other, position in meant) for clock in clocks]
        assert [bool(use.unknown_to(clock)) for clock in clocks] == wanted
        if wanted[0]:
            refused += 1
            with pytest.raises(OrderFault, match="without waiting for"):
                order.use(who, [use])
        else:
            order.use(who, [use])
            before.append((use, who, order.positions[who]))
        if rng.random() < 0.7:
            events.append(order.clocks[who].copy())
    assert 20 < refused < 280


def test_the_host_has_a_place_of_its_own_in_clocks() -> None:
    _, device, _ = lone()
    assert device.order.name(HOST) == "the host"
