"""The order of a device: random plans on strict devices give one device's numbers, and every event wait is needed.

A strict device (`tests.support.strict_device`) does what it is given in any order that streams and events allow, some
streams as late as they may be, in the memory that the plan gives each block. It refuses what is read or written without
an event that orders it behind what was there before, allocations and waits in a steady step, arrays of NumPy, and ranks
that call the collective library in different orders. Of every wait it finds out whether its act would be refused
without it; a plan of which one would not is a failure.

Of six plans one has ragged rows, whose counts stay on the device unless a layout makes terms that lack rows, and which
the host moves between ranks by a transport beside the library, one computes in halves or on codes of eight bits, one
drops out; a few of all kinds have no library at all, and half of these an MPI that takes addresses of devices.
What is in halves rounds where a plan cuts, so one device's losses are met as far as halves go; but devices that do all
at once give the same to the last bit, if the library adds up in the order of ranks both times.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from executor.runtime.ragged import terms_may_lack_rows
from executor.runtime.transport.cuda_mpi import CudaMpiTransport
from strategy.base.errors import SbplanError
from strategy.passes.mixed_precision import Precision
from strategy.program.hazards import Hazards
from strategy.program.program import Actor, Program
from tests.campaigns.outcome import Outcome
from tests.campaigns.transparency import QUOTAS as OF_PLANS
from tests.campaigns.transparency import exercised, on_one_device, pieces_of, ran, values_off
from tests.support.random_expert_plans import random_expert_case
from tests.support.random_plans import PlanCase, random_plan_case
from tests.support.strict_device.order import OrderFault
from tests.support.strict_device.running import StrictRank, train_strictly

STEPS = 3
EVERY, EXPERTS, HALVES, DROPOUT = 6, 0, 2, 4
"""Of so many plans, which has ragged rows, which computes in halves, and which drops out."""
PRECISIONS = (Precision.BF16, Precision.FP16, Precision.FP8_CURRENT, Precision.FP8_DELAYED)
STAGED = 0.15
"""Of all plans, those without a collective library."""
ADDRESSES = 0.5
"""Of these, those whose hosts give MPI the addresses of arrays of their devices."""
AHEAD = (24, 300, 1024)
HALF = 2.0**-5
"""Of a loss in halves: largest distance from one device's; eight times what rounding to bfloat16 loses of a figure."""
QUOTAS = {
    **{key: share for key, share in OF_PLANS.items() if key.startswith(("pipeline", "schedule", "zero", "offload"))},
    **{key: OF_PLANS[key] for key in ("owner", "accumulation", "buckets", "several streams", "data", "tensor")},
    "several ranks": 0.5,
    "copies to the host and back": 0.05,
    "acts of the host": 0.02,
    "graphs": 0.8,
    "ragged rows": 0.1,
    "ragged rows on several ranks": 0.1,
    "rows counted on the device": 0.05,
    "rows counted by the host": 0.01,
    "rows sent between ranks": 0.05,
    "experts split": 0.05,
    "dropout": 0.1,
    "fused": 0.05,
    "no library": 0.05,
    "addresses": 0.02,
    **{str(precision): 0.02 for precision in PRECISIONS},
}


def run(cases: int, seed: int) -> Outcome:
    """Check `cases` random plans."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        case = case_of(number)
        found: list[StrictRank] = []
        problems = list(check(case, number, found))
        outcome.add(f"plan {number}", problems, [*exercised(case), *_seen(case, found)])
        outcome.coverage["waits left out"] += sum(one.device.tried for one in found)
    return outcome


def case_of(number: int) -> PlanCase:
    """The plan of a case."""
    kind = number % EVERY
    if kind == EXPERTS:
        return random_expert_case(number, backend="cupy")
    precision = PRECISIONS[number // EVERY % len(PRECISIONS)] if kind == HALVES else Precision.FULL
    return random_plan_case(number, backend="cupy", precision=precision, dropout=kind == DROPOUT)


def check(case: PlanCase, number: int, found: list[StrictRank]) -> Iterator[str]:
    """What is wrong with the training of a plan on strict devices, which are added to `found`."""
    rng = random.Random(f"ahead {number}")
    ahead, staged = rng.choice(AHEAD), rng.random() < STAGED
    cuda_mpi = staged and random.Random(f"addresses {number}").random() < ADDRESSES
    halves = case.plan.training.precision.half is not None
    train = partial(
        train_strictly, case.plan, case.program, steps=STEPS, staged=staged, cuda_mpi=cuda_mpi, in_rank_order=halves
    )
    try:
        found += train(number, ahead=ahead)
        at_once = train(number, at_once=True) if halves else []
    except (SbplanError, OrderFault) as error:
        yield f"{type(error).__name__}: {error}"
        return
    spared = _writers_in_turn(case.program)
    for one in found:
        missed = (
            wait for wait in one.device.missed if wait.rpartition(", wait ")[0].rpartition(" runs ")[2] not in spared
        )
        yield from (f"left out and not missed: {wait}" for wait in missed)
    yield from (problem for one, other in zip(found, at_once, strict=halves) for problem in bits_off(one, other))
    yield from numbers_off(case, found)


def _writers_in_turn(program: Program) -> frozenset[str]:
    """Acts that write where other pieces are in every step: they wait in all steps for what some need."""
    blocks = frozenset[int]().union(*(Hazards(program, rank).in_turn for rank in range(program.ranks)))
    writers = (actor for actor in program.actors if any(port.register in blocks for port in actor.writes))
    return frozenset(actor.name for actor in writers)


def numbers_off(case: PlanCase, found: list[StrictRank]) -> Iterator[str]:
    """Where losses and variables are not those of one device."""
    wanted, losses = on_one_device(case.plan, steps=STEPS)
    if case.plan.training.precision.half is not None:
        yield from losses_off(found, losses)
        return
    ranks = [ran(one.trainer, one.trainer.losses, {}) for one in found]
    yield from values_off(case.plan, ranks, wanted, losses)


def losses_off(found: list[StrictRank], losses: list[float]) -> Iterator[str]:
    """Which losses of halves are farther from one device's than halves are from one another."""
    reports = [one.trainer.losses for one in found if one.trainer.losses]
    if not reports:
        yield "no rank reports a loss"
    for report in reports:
        for step, (loss, one) in enumerate(zip(report, losses, strict=True), 1):
            if not abs(loss - one) <= HALF * abs(one):
                yield f"loss of step {step}: {loss}, on one device {one}"


def bits_off(one: StrictRank, other: StrictRank) -> Iterator[str]:
    """Which losses and variables of a rank are not those of the same rank to the last bit."""
    if one.trainer.losses != other.trainer.losses:
        yield f"losses {one.trainer.losses}, at once {other.trainer.losses}"
    wanted = pieces_of(other.trainer)
    for name, piece in pieces_of(one.trainer).items():
        if piece.tobytes() != wanted[name].tobytes():
            yield f"{name} on rank {one.trainer.rank}: not as at once"


def _seen(case: PlanCase, found: list[StrictRank]) -> Iterator[str]:
    """What a plan is good for, here."""
    if case.plan.ranks > 1:
        yield "several ranks"
        transports = [one.trainer.worker.transport for one in found]
        yield from ["no library"] * any(not one.in_stream_order for one in transports)
        yield from ["addresses"] * any(isinstance(one, CudaMpiTransport) for one in transports)
    kinds = {op.kind for op in case.plan.graph.ops}
    yield from ["dropout"] * bool(kinds & {"dropout", "add_dropped"})
    yield from ["fused"] * ("add_dropped" in kinds)
    yield str(case.plan.training.precision)
    if any(stream.name in ("d2h", "h2d") for stream in case.program.streams):
        yield "copies to the host and back"
    if any(one.trainer.worker.issuer and one.trainer.worker.issuer.host for one in found):
        yield "acts of the host"
    if any(one.device.replayed for one in found):
        yield "graphs"
    if any(register.ragged is not None for register in case.program.registers):
        yield "ragged rows"
        yield from ["ragged rows on several ranks"] * (case.plan.ranks > 1)
        yield from ["rows sent between ranks"] * any(_sends_rows(case.program, actor) for actor in case.program.actors)
        yield from ["experts split"] * (case.plan.config.ep > 1)
        yield f"rows counted {'by the host' if terms_may_lack_rows(case.program, case.plan.graph) else 'on the device'}"


def _sends_rows(program: Program, actor: Actor) -> bool:
    """Whether an actor meets others to move ragged rows."""
    ports = (*actor.reads, *actor.writes)
    return actor.rendezvous is not None and any(program.registers[port.register].ragged is not None for port in ports)
