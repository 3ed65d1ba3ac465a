"""One side of `sbplan bench cpu`, a process that waits: for a line on stdin it does some steps and tells their times.

    ours       a plan's ranks, under mpiexec; rank 0 reads the lines
    torch      PyTorch: SDPA and fused AdamW, eager or compiled; with several ranks DDP over gloo, all read the lines
    products   the products of a plan's graph alone, on one rank, each at its best rate

A side has one BLAS thread per rank. The last line asks for the parameters, which rank 0 writes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

END = "end"


def steps_asked() -> Iterator[int]:
    """How many steps each line asks for."""
    for line in sys.stdin:
        if line.strip() == END:
            return
        yield int(line)


def tell(document: dict[str, Any]) -> None:
    """One line on stdout."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def run_ours(args: argparse.Namespace) -> int:
    """One rank of a plan."""
    import numpy as np

    from executor.data.text import standard_library
    from executor.runtime.kernels.base import open_kernels
    from executor.runtime.transport.base import lanes_of
    from executor.runtime.transport.mpi import MpiTransport
    from executor.train import Trainer, program_of
    from experiments.bench.cpu_blas import blas_kernel
    from experiments.jobs.ranks import barrier, broadcast, world
    from strategy.graph.graph import Role
    from strategy.plan.plan import read_plan

    comm = world("bench")
    plan = read_plan(args.plan)
    program = program_of(plan)
    transport = MpiTransport(comm, lanes_of(program))
    trainer = Trainer(plan, transport, open_kernels("numpy"), standard_library(), program=program)
    lines = steps_asked() if comm.rank == 0 else iter(())
    if comm.rank == 0:
        tell({"ready": blas_kernel()})
    while count := broadcast(comm, next(lines, 0)):
        seconds, losses, cpu_s = [], [], time.process_time()
        for _ in range(count):
            barrier(comm)
            began_s = time.perf_counter()
            report = trainer.run()
            barrier(comm)
            seconds.append(time.perf_counter() - began_s)
            losses += [] if report is None else [report.loss]
        if comm.rank == 0:
            tell({"seconds": seconds, "losses": losses, "cpu_s": time.process_time() - cpu_s})
    if comm.rank == 0:
        names = [one.name for one in plan.graph.with_role(Role.VARIABLE) if not one.parameter]
        np.savez(args.out, allow_pickle=False, **{name: trainer.worker.read(name) for name in names})
        tell({"parameters": str(args.out)})
    transport.close()
    return 0


def run_torch(args: argparse.Namespace) -> int:
    """One process of PyTorch."""
    import numpy as np
    import torch

    from executor.data.text import sample_batch, standard_library
    from executor.runtime.initialize import initial_piece
    from experiments.bench.torch_models import parameters_as_ours, torch_model
    from strategy.graph.graph import Role
    from strategy.plan.plan import read_plan

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    plan, text = read_plan(args.plan), standard_library().train
    (sequence,) = {value.spec.shape[1] for value in plan.graph.with_role(Role.INPUT)}
    training = plan.training
    trained = [one for one in plan.graph.with_role(Role.VARIABLE) if not one.parameter]
    weights = {
        one.name: initial_piece(one, tuple((0, size) for size in one.spec.shape), seed=training.seed).copy()
        for one in trained
    }
    model = torch_model(plan.model, weights)
    whole = model
    if args.ranks > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{args.out}.store", rank=args.rank, world_size=args.ranks
        )
        model = torch.nn.parallel.DistributedDataParallel(model)
    forward: Callable[..., Any] = torch.compile(model) if args.compiled else model
    groups = [
        {"params": [p for p in whole.parameters() if (p.dim() > 1) == decays], "weight_decay": share}
        for decays, share in ((True, training.weight_decay), (False, 0.0))
    ]
    betas = (training.beta1, training.beta2)
    optimizer = torch.optim.AdamW(groups, lr=training.lr, betas=betas, eps=training.epsilon, fused=True)
    each = training.global_batch // args.ranks
    rows = (args.rank * each, (args.rank + 1) * each)

    def step(number: int) -> float:
        ids, labels = sample_batch(text, seed=training.seed, step=number, rows=rows, seq=sequence)
        loss = forward(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(labels.astype(np.int64)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(whole.parameters(), training.max_norm)
        optimizer.step()
        optimizer.zero_grad()
        if args.ranks > 1:
            loss = loss.detach()
            torch.distributed.all_reduce(loss)
        found: float = loss.item() / args.ranks
        return found

    done = 0
    tell({"ready": f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, MKL"})
    for count in steps_asked():
        seconds, losses, cpu_s = [], [], time.process_time()
        for _ in range(count):
            began_s = time.perf_counter()
            losses.append(step(done))
            seconds.append(time.perf_counter() - began_s)
            done += 1
        tell({"seconds": seconds, "losses": losses, "cpu_s": time.process_time() - cpu_s})
    if args.rank == 0:
        np.savez(args.out, allow_pickle=False, **parameters_as_ours(whole))
    tell({"parameters": str(args.out)})
    return 0


def run_products(args: argparse.Namespace) -> int:
    """The floor: every product of the graph's pieces, by itself."""
    from experiments.bench.cpu_blas import blas_kernel
    from experiments.bench.product_floor import ProductFloor
    from strategy.plan.plan import read_plan

    floor = ProductFloor(read_plan(args.plan))
    tell({"ready": blas_kernel()})
    for count in steps_asked():
        cpu_s = count * floor.measure(time.thread_time)
        tell({"seconds": [floor.measure() for _ in range(count)], "losses": [], "cpu_s": cpu_s})
    tell({"flop": floor.flop})
    return 0


def main() -> None:
    """Entry of one process."""
    parser = argparse.ArgumentParser(prog="experiments.bench.cpu_sides", description=__doc__, allow_abbrev=False)
    parser.add_argument("side", choices=["ours", "torch", "products"])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--compiled", action="store_true")
    args = parser.parse_args(sys.argv[1:])
    sides = {"ours": run_ours, "torch": run_torch, "products": run_products}
    sys.exit(sides[args.side](args))


if __name__ == "__main__":
    main()
