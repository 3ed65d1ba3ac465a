"""Training by a plan on strict devices, all steps in one go: hosts run ahead from one step into the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from executor.runtime.transport.base import Group, HostArray, PendingTransfer, Transport, lanes_of
from executor.runtime.transport.loopback import LoopbackHub, LoopbackTransport
from executor.train import Trainer
from strategy.passes.training import REPORT
from strategy.plan.plan import Plan
from strategy.program.event_waits import StepWaits
from strategy.program.program import Program
from strategy.program.protocol import rendezvous_members
from tests.support.small_plans import corpus
from tests.support.strict_device.cuda_mpi import cuda_mpi_over
from tests.support.strict_device.device import StrictDevice, StrictKernels
from tests.support.strict_device.order import OrderFault
from tests.support.strict_device.transport import StrictTransport
from tests.support.strict_device.world import World


class Listener(Trainer):
    """A trainer that keeps the loss of every step."""

    losses: list[float]

    def _on_step(self, step: int, reports: Mapping[str, NDArray[Any]]) -> None:
        super()._on_step(step, reports)
        if REPORT in reports:
            self.losses.append(float(reports[REPORT][0] / reports[REPORT][1]))


@dataclass(frozen=True, slots=True)
class StrictRank:
    """One rank's device and trainer, and by what its host moves arrays of its own."""

    device: StrictDevice
    trainer: Listener
    of_host: PatientTransport


Change = Callable[[int, tuple[StepWaits, ...]], tuple[StepWaits, ...]]
"""What is made of the waits of a rank."""


class PatientTransport(LoopbackTransport):
    """A transport of the host, whose ranks take turns; `met` is how often it met which group for which rendezvous."""

    world: World
    device: StrictDevice

    def __init__(self, hub: LoopbackHub, rank: int) -> None:
        super().__init__(hub, rank)
        self.met = Counter[tuple[Group, int]]()

    def _collective(
        self, group: Group, number: int, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]
    ) -> PendingTransfer:
        self.met[group, number] += 1
        return super()._collective(group, number, send, receive)

    def pause(self, idle_ns: int) -> None:
        """Let other ranks, and devices, go on."""
        self.device.look_for_host_writes()
        self.world.hand_over(self.rank)


def train_strictly(
    plan: Plan,
    program: Program,
    seed: int,
    *,
    steps: int,
    ahead: int = 1024,
    change: Change | None = None,
    staged: bool = False,
    cuda_mpi: bool = False,
    at_once: bool = False,
    in_rank_order: bool = False,
) -> list[StrictRank]:
    """Run a plan for some steps, hosts at most `ahead` acts before their devices.

    If `staged`, movements between ranks go by the hosts; with `cuda_mpi` these hand MPI addresses of their devices. For
    the others see `World`.

    Raises:
        OrderFault: something is used without an event, or a steady step does what it must not.
    """
    world = World(plan.ranks, seed, at_once=at_once, in_rank_order=in_rank_order)
    hub = LoopbackHub(plan.ranks, lanes_of(program))
    ranks = [
        _rank(world, plan, program, rank, ahead, hub, staged=staged, cuda_mpi=cuda_mpi) for rank in range(plan.ranks)
    ]
    for rank, one in enumerate(ranks):
        issuer = one.trainer.worker.issuer
        assert issuer is not None
        issuer.waits = issuer.waits if change is None else change(rank, issuer.waits)

    def body(one: StrictRank) -> Callable[[], None]:
        def run() -> None:
            one.trainer.worker.run(steps=steps)
            one.device.rest()

        return run

    world.play([body(one) for one in ranks])
    _check_met([one.of_host for one in ranks])
    return ranks


def _check_met(hosts: Sequence[PatientTransport]) -> None:
    """Those of a group have met equally often, with something to move or not: others would have waited for ever.

    Raises:
        OrderFault: a rank stayed away.
    """
    for group, number in {meeting for host in hosts for meeting in host.met}:
        counts = [hosts[rank].met[group, number] for rank in group]
        if len(set(counts)) > 1:
            raise OrderFault(f"hosts of ranks {group} meet {counts} times for rendezvous {number}")


def _rank(
    world: World,
    plan: Plan,
    program: Program,
    rank: int,
    ahead: int,
    hub: LoopbackHub,
    *,
    staged: bool,
    cuda_mpi: bool,
) -> StrictRank:
    device = StrictDevice(world, rank)
    members = rendezvous_members(program)
    groups: dict[int, Group] = {n: tuple(program.actors[a].rank for a in found) for n, found in members.items()}
    text = corpus(getattr(plan.model, "vocabulary", 2))
    of_host = PatientTransport(hub, rank)
    of_host.world, of_host.device = world, device
    kernels = StrictKernels(device)
    transport: Transport = of_host if staged else StrictTransport(world, device, groups, of_host)
    if cuda_mpi:
        transport = cuda_mpi_over(of_host, device, kernels)
    trainer = Listener(plan, transport, kernels, text, program=program, on_act=device.announce, ahead=ahead)
    trainer.losses = []
    device.attach(trainer.worker)
    return StrictRank(device, trainer, of_host)
