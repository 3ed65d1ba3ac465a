"""A rank that finds no number in a gradient: all ranks skip that step, and go on.

mpiexec -n 4 python -m mpi4py -m tests.mpi.skipped PLAN RANK
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from executor.runtime.kernels.base import open_kernels
from executor.runtime.transport.base import lanes_of
from executor.runtime.transport.mpi import MpiTransport
from executor.train import Trainer, program_of
from strategy.graph.graph import Role
from strategy.plan.plan import Plan, read_plan
from strategy.program.program import Program
from tests.support.small_plans import corpus

STEPS, BAD_STEP = 3, 1


class Poison:
    """Called before every act; in one step of one rank, a gradient that is to be accumulated has a cell of no number.

    Other ranks have the same terms, or other terms, or none of that gradient.
    """

    def __init__(self, program: Program, rank: int) -> None:
        self.program = program
        self.trainer: Trainer | None = None
        actors = program.actors
        self.actor = next(
            i for i, a in enumerate(actors) if a.rank == rank and a.name.endswith(":sum") and a.name[:4] != "loss"
        )

    def __call__(self, actor: int, number: int) -> None:
        """Write it, if this is the act."""
        acts = self.program.actors[self.actor].acts_per_step
        if actor == self.actor and number == BAD_STEP * acts + acts - 1:
            assert self.trainer is not None
            register = self.program.actors[actor].reads[0].register
            for block in range(self.program.registers[register].blocks):
                self.trainer.worker.registers.block(register, block).reshape(-1)[-1] = np.nan


def state(plan: Plan, trainer: Trainer) -> dict[str, bytes]:
    """Every variable that a rank holds."""
    held = set(trainer.worker.registers.names())
    return {
        v.name: trainer.worker.read(v.name).tobytes() for v in plan.graph.with_role(Role.VARIABLE) if v.name in held
    }


def main(path: Path, rank: int) -> None:
    """Train by a plan; every rank says which of its variables each step changed."""
    comm = MPI.COMM_WORLD
    plan = read_plan(path)
    program = program_of(plan)
    poison = Poison(program, rank)
    transport = MpiTransport(comm, lanes_of(program))
    text = corpus(plan.model.vocabulary)  # type: ignore[attr-defined]
    trainer = Trainer(plan, transport, open_kernels("numpy"), text, program=program, on_act=poison)
    poison.trainer = trainer
    changed, reports, held = [], [], state(plan, trainer)
    for _ in range(STEPS):
        reports.append(trainer.run())
        now = state(plan, trainer)
        changed.append(sorted(name for name, before in held.items() if now[name] != before))
        held = now
    transport.close()
    skipped = [report.skipped for report in reports if report is not None]
    finite = all(np.isfinite(trainer.worker.read(name)).all() for name in held)
    found = comm.gather({"held": sorted(held), "changed": changed, "skipped": skipped, "finite": finite})
    if found is not None:
        print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
