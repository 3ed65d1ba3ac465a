"""Memory is what the plan says: the peak of random plans against what their ranks allocate, to the byte.

Every plan also trains while each block is poisoned as soon as its time has ended, and must give what one device gives.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from executor.runtime.acts import memory
from executor.runtime.registers import BASE_ALIGNMENT
from executor.train import Trainer
from strategy.lowering.memory import fullest, memory_nbytes
from strategy.lowering.occupancy import Occupancy
from strategy.sbp.sbp import Split
from tests.campaigns.outcome import Outcome
from tests.campaigns.transparency import differences, text_of
from tests.campaigns.transparency import exercised as made_of
from tests.support.poison import Poison
from tests.support.random_plans import PlanCase, random_plan_case
from tests.support.small_plans import train

QUOTAS = {
    "pipeline": 0.3,
    "data": 0.3,
    "tensor": 0.1,
    "accumulation": 0.3,
    "uneven": 0.1,
    "random layout": 0.3,
    "deduced": 0.2,
    "several blocks": 0.2,
    "in place": 0.5,
    "beside computation": 0.1,
    "no gaps": 0.15,
}
STEPS = 2
GAPS = 1.25
"""Most that a rank of such a small plan may hold over what is in use at once."""


def run(cases: int, seed: int) -> Outcome:
    """Check `cases` random plans."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        case = random_case(number)
        outcome.add(f"plan {number}", check(case), exercised(case))
    return outcome


def random_case(number: int) -> PlanCase:
    """Every third a pipeline at least, every fourth with collectives beside computation."""
    return random_plan_case(number, pipeline=number % 3 == 0, backend="cupy" if number % 4 == 0 else "numpy")


def exercised(case: PlanCase) -> Iterator[str]:
    """What a plan is good for."""
    program = case.program
    yield from made_of(case)
    yield from ["several blocks"] * any(r.blocks > 1 and not r.initial for r in program.registers)
    occupancy = Occupancy(program)
    yield from ["in place"] * any(len(found.blocks) > 1 for found in occupancy.of_rank(0))
    collective = any(any(isinstance(sbp, Split) for sbp in c.copy.layout) for c in case.plan.layout.conversions)
    yield from ["beside computation"] * (case.plan.pipeline.overlaps and collective)
    yield from ["two levels"] * ({"intra", "inter"} <= {stream.name for stream in program.streams})
    yield from ["no gaps"] * (fullest(program, 0).nbytes == memory_nbytes(program)[0])


def check(case: PlanCase) -> Iterator[str]:
    """In what the memory of a plan is not what it claims, or is in use when it should not be."""
    plan, program = case.plan, case.program
    poison = [Poison(program) for _ in range(plan.ranks)]
    trained = train(plan, text_of(plan), steps=STEPS, program=program, poison=poison)
    yield from differences(plan, trained, steps=STEPS)
    for trainer, poisoned in zip(trained.trainers, poison, strict=True):
        rank, claimed = trainer.rank, plan.claims.peak_memory_bytes[trainer.rank]
        on_host = plan.claims.peak_host_memory_bytes[rank]
        found = trainer.worker.registers.nbytes, allocated_nbytes(trainer)
        if found != (claimed, claimed + on_host):
            yield f"rank {rank} allocates {found} bytes, planned are {claimed}"
        least = fullest(program, rank).nbytes
        if not least <= claimed <= GAPS * least:
            yield f"rank {rank} holds {claimed} bytes, of which {least} at once"
        if not poisoned.filled:
            yield f"rank {rank}: no block was poisoned"


def allocated_nbytes(trainer: Trainer) -> int:
    """Bytes of the allocations behind all blocks of a rank, without what finding a cache line takes."""
    registers = trainer.worker.registers
    roots = {}
    for name in registers.names():
        for array in registers.blocks(registers.index(name)):
            root = memory(array)
            while isinstance(root.base, np.ndarray):
                root = root.base
            roots[id(root)] = root.nbytes - BASE_ALIGNMENT
    return sum(roots.values())
