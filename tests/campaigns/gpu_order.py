"""The order of a device: random plans on strict devices give one device's numbers, and every event wait is needed.

A strict device (`tests.support.strict_device`) does what it is given in any order that streams and events allow, some
streams as late as they may be, in the memory that the plan gives each block. It refuses what is read or written without
an event that orders it behind what was there before, allocations and waits in a steady step, arrays of NumPy, and ranks
that call the collective library in different orders. Every sixth plan has ragged rows: the host reads their counts, and
moves them between ranks by a transport beside the library. Of every wait it finds out whether its act would be refused
without it; a plan of which one would not is a failure.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from strategy.base.errors import SbplanError
from strategy.program.program import Actor, Program
from tests.campaigns.outcome import Outcome
from tests.campaigns.transparency import QUOTAS as OF_PLANS
from tests.campaigns.transparency import exercised, on_one_device, ran, values_off
from tests.support.random_expert_plans import random_expert_case
from tests.support.random_plans import PlanCase, random_plan_case
from tests.support.strict_device.order import OrderFault
from tests.support.strict_device.running import StrictRank, train_strictly

STEPS = 3
EXPERTS_EVERY = 6
"""A plan with ragged rows."""
AHEAD = (24, 300, 1024)
QUOTAS = {
    **{key: share for key, share in OF_PLANS.items() if key.startswith(("pipeline", "schedule", "zero", "offload"))},
    **{key: OF_PLANS[key] for key in ("owner", "accumulation", "buckets", "several streams", "data", "tensor")},
    "several ranks": 0.5,
    "copies to the host and back": 0.05,
    "acts of the host": 0.02,
    "graphs": 0.8,
    "ragged rows": 0.1,
    "ragged rows on several ranks": 0.1,
    "rows sent between ranks": 0.05,
    "experts split": 0.05,
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
    draw = random_expert_case if number % EXPERTS_EVERY == 0 else random_plan_case
    return draw(number, backend="cupy")


def check(case: PlanCase, number: int, found: list[StrictRank]) -> Iterator[str]:
    """What is wrong with the training of a plan on strict devices, which are added to `found`."""
    ahead = random.Random(f"ahead {number}").choice(AHEAD)
    try:
        found += train_strictly(case.plan, case.program, number, steps=STEPS, ahead=ahead)
    except (SbplanError, OrderFault) as error:
        yield f"{type(error).__name__}: {error}"
        return
    for one in found:
        yield from (f"left out and not missed: {wait}" for wait in one.device.missed)
    yield from numbers_off(case, found)


def numbers_off(case: PlanCase, found: list[StrictRank]) -> Iterator[str]:
    """Where losses and variables are not those of one device."""
    wanted, losses = on_one_device(case.plan, steps=STEPS)
    ranks = [ran(one.trainer, one.trainer.losses, {}) for one in found]
    yield from values_off(case.plan, ranks, wanted, losses)


def _seen(case: PlanCase, found: list[StrictRank]) -> Iterator[str]:
    """What a plan is good for, here."""
    if case.plan.ranks > 1:
        yield "several ranks"
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


def _sends_rows(program: Program, actor: Actor) -> bool:
    """Whether an actor meets others to move ragged rows."""
    ports = (*actor.reads, *actor.writes)
    return actor.rendezvous is not None and any(program.registers[port.register].ragged is not None for port in ports)
