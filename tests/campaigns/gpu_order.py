"""The order of a device: random plans on strict devices give one device's numbers, and every event wait is needed.

A strict device (`tests.support.strict_device`) does what it is given in any order that streams and events allow, some
streams as late as they may be, in the memory that the plan gives each block. It refuses what is read or written without
an event that orders it behind what was there before, allocations and waits in a steady step, arrays of NumPy, and ranks
that call the collective library in different orders. Of every wait it finds out whether its act would be refused
without it; a plan of which one would not is a failure.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from strategy.base.errors import SbplanError
from tests.campaigns.outcome import Outcome
from tests.campaigns.transparency import QUOTAS as OF_PLANS
from tests.campaigns.transparency import exercised, on_one_device, ran, values_off
from tests.support.random_plans import PlanCase, random_plan_case
from tests.support.strict_device.order import OrderFault
from tests.support.strict_device.running import StrictRank, train_strictly

STEPS = 3
AHEAD = (24, 300, 1024)
QUOTAS = {
    **{key: share for key, share in OF_PLANS.items() if key.startswith(("pipeline", "schedule", "zero", "offload"))},
    **{key: OF_PLANS[key] for key in ("owner", "accumulation", "buckets", "several streams", "data", "tensor")},
    "several ranks": 0.5,
    "copies to the host and back": 0.05,
    "acts of the host": 0.02,
    "graphs": 0.8,
}


def run(cases: int, seed: int) -> Outcome:
    """Check `cases` random plans."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        case = random_plan_case(number, backend="cupy")
        found: list[StrictRank] = []
        problems = list(check(case, number, found))
        outcome.add(f"plan {number}", problems, [*exercised(case), *_seen(case, found)])
        outcome.coverage["waits left out"] += sum(one.device.tried for one in found)
    return outcome


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
