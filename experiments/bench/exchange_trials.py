"""Trials of the exchange of gradients: what one rank of `sbplan bench exchange` does, on two nodes.

`streams`, a rank on each node, and `halves`, two on each, block after block and each trial in turn, so that drifts fall
on all alike:

    compute         matrix products, a share for every gradient; of two ranks on a node, who share its cores, waits
    communication   all gradients announced at once
    serial          one after the other
    ahead           all gradients announced, then the compute: what the exchange takes from it
    ours            several streams, gradients announced as they are computed, at several bucket sizes; where nodes have
                    two ranks, an upper and a lower half
    rival           the same with one stream and a ring through all ranks, as Horovod has it, at its bucket sizes
    alone           the exchange of either without compute
    ddp             PyTorch's DDP over gloo, where PyTorch is installed

`levels`, two ranks on each: the all-reduce on one level and on two, after a profile of both levels.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from executor.exchange.gradient_exchange import GradientExchange
    from executor.exchange.reduction import AllReduce
    from executor.exchange.settings import ExchangeSettings

    _Act = Callable[[GradientExchange], object]
    _Way = Callable[[ExchangeSettings, _Act], float]

KIB, MIB = 2**10, 2**20
RIVAL_FUSION_BYTES = tuple(64 * KIB * 4**k for k in range(8))
"""64 KiB to 1 GiB: gradients almost one by one, and all of them together."""
OURS = tuple((streams, fusion) for streams in (2, 4) for fusion in (256 * KIB, MIB, 4 * MIB))
USUAL = (4, MIB)
"""Of these, what compute is as long as, and what is timed one after the other."""
LAYERS, WIDTH, VOCABULARY = 12, 192, 4096
"""Of the encoder whose gradients are exchanged: BERT's 16 tensors per layer, at a quarter of its width."""
LEVEL_ROWS = (4096, 32768, 131072)
"""Rows of 16 float32 that are reduced on one level and on two: 256 KiB to 8 MiB."""
_ROWS = 96
"""Of the square products that stand for the backward pass."""
_CYCLE_S = 1e-3


@dataclass(frozen=True, slots=True)
class TrialTimes:
    """Seconds of one trial in every block, by the slowest rank; `side` is ours, rival, either alone, ddp or none."""

    name: str
    side: str
    seconds: tuple[float, ...]


def store_of(out: Path) -> Path:
    """Where processes of PyTorch meet; what an earlier job left there would hold them up."""
    return out.with_suffix(".store")


def gradient_sizes() -> list[int]:
    """Elements of the gradients of an encoder with BERT's tensors, in the order in which they are computed."""
    width, inner = WIDTH, 4 * WIDTH
    layer = [inner * width, width, width * inner, inner, width, width]  # feed-forward, and the norm behind it
    layer += [width * width, width, width, width] + 3 * [width * width, width]  # attention, and its norm
    return LAYERS * layer + [VOCABULARY * width, 512 * width, 2 * width, width, width]


class _Trials:
    """One rank: gradients, and what is computed, or waited for, before each of them."""

    def __init__(self, comm: MPI.Intracomm, *, waits: bool) -> None:
        import numpy as np

        self._comm = comm
        self._waits = waits
        sizes = gradient_sizes()
        self.gradients = {f"g{number:03d}": np.ones(size, np.float32) for number, size in enumerate(sizes)}
        self._product = np.full((3, _ROWS, _ROWS), 0.5, np.float32)
        self._products = dict.fromkeys(self.gradients, 0)
        self._due_s = dict.fromkeys(self.gradients, 0.0)
        self._began_s = 0.0

    @property
    def total_bytes(self) -> int:
        """Of all gradients."""
        return sum(array.nbytes for array in self.gradients.values())

    def fill(self, seconds: float) -> None:
        """Let the compute of a step take about so long on the slowest rank."""
        each_s = math.inf if self._waits else self._product_s()
        due_s = 0.0
        for name, array in self.gradients.items():
            share_s = seconds * array.nbytes / self.total_bytes
            due_s += share_s
            self._due_s[name], self._products[name] = due_s, max(1, round(share_s / each_s))

    def products(self) -> dict[str, int]:
        """Of each gradient; where they are waits, in proportion to these."""
        return {name: array.size for name, array in self.gradients.items()} if self._waits else dict(self._products)

    def begin(self) -> None:
        """A backward pass begins."""
        self._began_s = time.perf_counter()

    def spend(self, name: str) -> None:
        """What comes before one gradient of the backward pass that has begun."""
        if self._waits:
            time.sleep(max(self._began_s + self._due_s[name] - time.perf_counter(), 0.0))
            return
        for _ in range(self._products[name]):
            self._multiply()

    def compute(self, then: Callable[[str], object] = lambda name: None) -> None:
        """The backward pass; `then` is told of each gradient as it is there."""
        self.begin()
        for name in self.gradients:
            self.spend(name)
            then(name)

    def timed(self, act: Callable[[], object]) -> float:
        """Seconds from when all ranks begin until the slowest ends."""
        from experiments.jobs.ranks import barrier

        barrier(self._comm)
        began_s = time.perf_counter()
        act()
        return self._slowest(time.perf_counter() - began_s)

    def _product_s(self) -> float:
        began_s = time.perf_counter()
        for _ in range(500):
            self._multiply()
        return self._slowest((time.perf_counter() - began_s) / 500)

    def _multiply(self) -> None:
        import numpy as np

        np.matmul(self._product[0], self._product[1], out=self._product[2])

    def _slowest(self, seconds: float) -> float:
        from experiments.jobs.ranks import longest

        return longest(self._comm, [seconds])[0]


def settings_of(streams: int, fusion_bytes: int, *, cuts: bool, ranks_per_node: int = 1) -> ExchangeSettings:
    """Those of a trial; a rival's tensors are not cut."""
    from executor.exchange.settings import ExchangeSettings

    fragment = fusion_bytes if cuts else 2**30
    return ExchangeSettings(
        fusion_bytes=fusion_bytes,
        fragment_bytes=fragment,
        streams=streams,
        cycle_s=_CYCLE_S,
        ranks_per_node=ranks_per_node,
    )


def time_beside(
    comm: MPI.Intracomm, blocks: int, progress: Callable[[str], None], store: Path, *, ranks_per_node: int
) -> dict[str, Any]:
    """Compute, communication, one after the other, and beside each other by all schemes.

    `store`: a file that is not there yet, which all ranks see.
    """
    from executor.exchange.reduction import all_reduce
    from experiments.bench.ddp_step import BUCKET_MB, ddp_step, has_torch, meet
    from experiments.bench.ring_all_reduce import ring_all_reduce

    trials = _Trials(comm, waits=ranks_per_node > 1)
    inside_s = _inside_s(comm, trials, ranks_per_node) if ranks_per_node > 1 else 0.0
    first = settings_of(*USUAL, cuts=True, ranks_per_node=ranks_per_node)
    ours: _Way = partial(_exchanged, comm, trials, all_reduce)
    rival: _Way = partial(_exchanged, comm, trials, ring_all_reduce)
    together: _Act = partial(_announce_all, gradients=trials.gradients)
    trials.fill(min(ours(first, together) for _ in range(3)))
    jobs: dict[str, Callable[[], float]] = {
        "compute": lambda: trials.timed(trials.compute),
        "communication": lambda: ours(first, together),
        "serial": lambda: ours(first, _one_after_the_other(trials)),
        "ahead": lambda: ours(first, _ahead(trials)),
    }
    sides = dict.fromkeys(jobs, "")
    for streams, fusion in OURS:
        settings = settings_of(streams, fusion, cuts=True, ranks_per_node=ranks_per_node)
        name = f"ours, {streams} streams, {fusion} bytes"
        jobs[name], sides[name] = partial(ours, settings, _beside(trials)), "ours"
        jobs[name + ", alone"], sides[name + ", alone"] = partial(ours, settings, together), "ours alone"
    for fusion in RIVAL_FUSION_BYTES:
        name, settings = f"rival, {fusion} bytes", settings_of(1, fusion, cuts=False)
        jobs[name], sides[name] = partial(rival, settings, _beside(trials)), "rival"
        jobs[name + ", alone"], sides[name + ", alone"] = partial(rival, settings, together), "rival alone"
    if has_torch():
        meet(store, comm.rank, comm.size)
        for bucket_mb in BUCKET_MB:
            name, step = f"ddp, {bucket_mb} MiB", ddp_step(trials.gradients, trials.spend, bucket_mb)
            jobs[name], sides[name] = partial(_stepped, trials, step), "ddp"
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for block in range(blocks):
        for name, job in jobs.items():
            seconds[name].append(job())
        progress(f"block {block + 1} of {blocks}")
    return {
        "gradient_bytes": [array.nbytes for array in trials.gradients.values()],
        "products": list(trials.products().values()),
        "product_rows": 0 if ranks_per_node > 1 else _ROWS,
        "ranks_per_node": ranks_per_node,
        "inside_bytes_per_s": trials.total_bytes / inside_s if inside_s else None,
        "trials": [asdict(TrialTimes(name, sides[name], tuple(found))) for name, found in seconds.items()],
    }


def _inside_s(comm: MPI.Intracomm, trials: _Trials, ranks_per_node: int) -> float:
    """Seconds in which all gradients go from one rank to the next of its node."""
    import numpy as np

    from experiments.jobs.ranks import longest

    array, node = np.ones(trials.total_bytes, np.uint8), comm.Split(comm.rank // ranks_per_node)
    found = []
    for _ in range(3):
        comm.Barrier()
        began_s = time.perf_counter()
        if node.rank == 0:
            node.Send(array, 1)
        elif node.rank == 1:
            node.Recv(array, 0)
        found += longest(comm, [time.perf_counter() - began_s])
    node.Free()
    return min(found)


def _stepped(trials: _Trials, step: Callable[[], None]) -> float:
    """Seconds of the third step of PyTorch's."""

    def act() -> None:
        trials.begin()
        step()

    act()
    act()
    return trials.timed(act)


def _beside(trials: _Trials) -> _Act:
    def act(exchange: GradientExchange) -> None:
        trials.compute(lambda name: exchange.announce(name, trials.gradients[name]))
        exchange.finish_step()

    return act


def _one_after_the_other(trials: _Trials) -> _Act:
    def act(exchange: GradientExchange) -> None:
        trials.compute()
        _announce_all(exchange, trials.gradients)

    return act


def _ahead(trials: _Trials) -> _Act:
    def act(exchange: GradientExchange) -> None:
        for name, array in trials.gradients.items():
            exchange.announce(name, array)
        trials.compute()
        exchange.finish_step()

    return act


def _announce_all(exchange: GradientExchange, gradients: Mapping[str, np.ndarray[Any, Any]]) -> None:
    for name, array in gradients.items():
        exchange.announce(name, array)
    exchange.finish_step()


def _exchanged(
    comm: MPI.Intracomm, trials: _Trials, reduces: AllReduce, settings: ExchangeSettings, act: _Act
) -> float:
    """Seconds of the second step of an exchange of its own: the first one warms connections up."""
    from executor.exchange.gradient_exchange import GradientExchange
    from executor.runtime.transport.mpi import MpiTransport

    transport = MpiTransport(comm, {})
    exchange = GradientExchange(transport, settings, reduces=reduces)
    exchange.register(trials.gradients)
    _announce_all(exchange, trials.gradients)
    seconds = trials.timed(lambda: act(exchange))
    exchange.close()
    transport.close()
    return seconds


def time_hierarchical(comm: MPI.Intracomm, blocks: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """All-reduces of some sizes on one level and on two, and what a profile of this job makes of both."""
    from dataclasses import replace

    from executor.collective_profile import (
        CollectiveSample,
        GroupTask,
        collective_lanes,
        collective_samples,
        time_collective,
    )
    from executor.runtime.transport.mpi import MpiTransport
    from experiments.jobs.profiling import agreed_cluster
    from experiments.jobs.ranks import longest
    from strategy.comm.boxing import BoxingStep
    from strategy.comm.hierarchical import nodes_of
    from strategy.comm.rank_parts import boxing_task
    from strategy.cost.calibrate import calibrate
    from strategy.cost.communication import step_features
    from strategy.cost.measurement import summarise
    from strategy.program.program import ActKind
    from strategy.sbp.placement import Placement
    from strategy.sbp.sbp import B, P
    from strategy.sbp.tensor import TensorSpec

    cluster = agreed_cluster(comm)
    step, everyone = BoxingStep(ActKind.ALL_REDUCE, (0,), (B,)), tuple(range(comm.size))
    world, nodes = Placement(everyone, (comm.size,), ("all",)), nodes_of(cluster, everyone)
    base = collective_samples(cluster)
    number = 1 + max(part.number for sample in base for part in sample.tasks.values())
    pairs: list[dict[bool, CollectiveSample]] = []
    for rows in LEVEL_ROWS:
        spec, pair = TensorSpec((rows, 16)), {}
        for two in (False, True):
            tasks = {}
            for rank in everyone:
                task = boxing_task(spec, (P,), step, world, rank)
                tasks[rank] = GroupTask(replace(task, nodes=nodes) if two else task, everyone, number)
            features = step_features(cluster, spec, (P,), step, world)
            pair[two] = CollectiveSample(features, ActKind.ALL_REDUCE, spec, tasks)
            number += 1
        pairs.append(pair)
    transport = MpiTransport(comm, collective_lanes([*base, *(one for pair in pairs for one in pair.values())]))
    rows_measured = [
        summarise(sample.features, longest(comm, time_collective(sample, transport)), "profile") for sample in base
    ]
    progress("profiled")
    cost = calibrate(rows_measured, cluster).cost_model(cluster)
    found: list[dict[bool, list[float]]] = [{False: [], True: []} for _ in pairs]
    for block in range(blocks):
        for pair, seconds in zip(pairs, found, strict=True):
            for two, sample in pair.items():
                seconds[two] += longest(comm, time_collective(sample, transport))
        progress(f"block {block + 1} of {blocks}")
    transport.close()
    sizes = []
    for pair, seconds in zip(pairs, found, strict=True):
        chosen = cost.step_features(pair[True].spec, (P,), step, world)
        sizes.append(
            {
                "nbytes": pair[True].spec.nbytes,
                "one_level_s": seconds[False],
                "two_levels_s": seconds[True],
                "plan_chooses_two": bool(chosen.parts),
                "predicted_one_level_s": cost.seconds(pair[False].features),
                "predicted_chosen_s": cost.seconds(chosen),
            }
        )
    measured = [asdict(row) for row in rows_measured]
    return {"cluster": asdict(cluster), "sizes": sizes, "measurements": measured}


def main() -> None:
    """Entry of one rank."""
    from executor.supervision.rank import run_rank

    parser = argparse.ArgumentParser(prog="experiments.bench.exchange_trials", description=__doc__, allow_abbrev=False)
    parser.add_argument("part", choices=["streams", "halves", "levels"])
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(sys.argv[1:])
    run_rank(lambda: _rank(args.part, args.blocks, args.out))


def _rank(part: str, blocks: int, out: Path) -> int:
    from experiments.command.console import say
    from experiments.jobs.ranks import world
    from strategy.program.timeline import write_json

    comm = world("bench")
    progress = (lambda line: say(f"{part}: {line}")) if comm.rank == 0 else (lambda line: None)
    if part == "levels":
        found = time_hierarchical(comm, blocks, progress)
    else:
        found = time_beside(comm, blocks, progress, store_of(out), ranks_per_node=1 if part == "streams" else 2)
    if comm.rank == 0:
        write_json(found, out)
    return 0


if __name__ == "__main__":
    main()
