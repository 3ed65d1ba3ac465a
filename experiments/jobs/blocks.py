"""Blocks: times several plans against each other in one MPI job, block after block in turn.

    block 0   plan A  plan B  plan C      some steps each
    block 1   plan A  plan B  plan C      each goes on where it stopped
    ...

A drift of the machine's speed then falls on all plans alike. With each step's time stands how long the rank that waited
longest for a core of the machine did so. Run under mpiexec:
`python -m experiments.jobs.blocks PLAN...`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Arguments of one rank."""
    parser = argparse.ArgumentParser(prog="experiments.jobs.blocks", description=__doc__, allow_abbrev=False)
    parser.add_argument("plans", nargs="+", type=Path)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kernels", default="numpy")
    return parser.parse_args(argv)


def time_plans(paths: Sequence[Path], *, blocks: int, steps: int, out: Path, kernels: str) -> int:
    """One rank: train every plan `steps` steps per block. Rank 0 writes `out/<plan>.run.json` and its timeline."""
    from executor.data.text import standard_library
    from executor.runtime.kernels.base import open_kernels
    from executor.runtime.transport.base import lanes_of
    from executor.runtime.transport.mpi import MpiTransport
    from executor.supervision.environment import run_folder
    from executor.supervision.failure import write_actors
    from executor.supervision.heartbeat import Heartbeat, heartbeat_path
    from executor.train import StepReport, Trainer, check_world, program_of
    from experiments.command.console import say
    from experiments.jobs.core_wait import waited_for_core_s
    from experiments.jobs.ranks import agree, barrier, gather, gather_timeline, read_clocks, world
    from strategy.base.errors import RunError
    from strategy.plan.plan import read_plan
    from strategy.program.timeline import write_json, write_timeline

    comm = world("blocks")
    folder = run_folder()
    heartbeat = Heartbeat(heartbeat_path(folder, comm.rank))
    corpus = standard_library()
    trainers: list[Trainer] = []
    for path in paths:
        plan = read_plan(path)
        check_world(plan, comm.size)
        agree(comm, plan=plan.plan_hash)
        program = program_of(plan)
        if comm.rank == 0 and not trainers:
            write_actors(folder, program)
        transport = MpiTransport(comm, lanes_of(program))
        device = open_kernels(kernels)
        trainers.append(Trainer(plan, transport, device, corpus, program=program, on_act=heartbeat.beat, record=True))
    reports: list[list[StepReport]] = [[] for _ in paths]
    waited_s: list[list[float]] = [[] for _ in paths]
    clocks = read_clocks(comm)
    for block in range(blocks):
        for index, trainer in enumerate(trainers):
            comm.Barrier()
            for _ in range(steps):
                before_s = waited_for_core_s()
                report = trainer.run()
                waited_s[index].append(waited_for_core_s() - before_s)
                if report is not None:
                    if trainer.is_broken(report):
                        raise RunError(f"{paths[index]}: the loss or a gradient of step {report.step} is not finite")
                    reports[index].append(report)
            if comm.rank == 0:
                say(f"block {block + 1}/{blocks}: {paths[index].stem}")
    with heartbeat.saving():
        pids, waited_by_rank = gather(comm, os.getpid()), gather(comm, waited_s)
        for index, (path, trainer, found) in enumerate(zip(paths, trainers, reports, strict=True)):
            timeline = gather_timeline(comm, trainer.program, trainer.worker, trainer.step, clocks)
            trainer.worker.transport.close()
            if timeline is not None and waited_by_rank is not None:
                write_timeline(timeline, out / f"{path.stem}.timeline.json.gz")
                times = [report.step_time_s for report in found]
                longest = [max(ranks) for ranks in zip(*(of_rank[index] for of_rank in waited_by_rank), strict=True)]
                losses = [report.loss for report in found]
                run = {"step_time_s": times, "waited_s": longest, "loss": losses, "pids": pids}
                write_json(run, out / f"{path.stem}.run.json")
        barrier(comm)  # the others wait for rank 0, which writes
    return 0


def main() -> None:
    """Entry of one rank."""
    from executor.supervision.rank import run_rank

    args = parse(sys.argv[1:])
    run_rank(lambda: time_plans(args.plans, blocks=args.blocks, steps=args.steps, out=args.out, kernels=args.kernels))


if __name__ == "__main__":
    main()
