"""Random exchanges by real ranks: `mpiexec -n N python -m mpi4py -m tests.mpi.random_exchanges CASES SEED`.

Settings, tensors, dtypes and codecs are drawn alike on all ranks; the order of announcements, the pauses between them,
what is asked for besides, and how many steps a rank has are its own. Rank 0 prints what each case exercised and found.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.exchange.codecs import BFloat16, Codec, Float16, Int8, TopK
from executor.exchange.gradient_exchange import GradientExchange
from executor.exchange.settings import ExchangeSettings
from executor.runtime.transport.base import HostArray
from executor.runtime.transport.mpi import MpiTransport, open_world

CODECS: tuple[Codec | None, ...] = (None, None, Float16(), BFloat16(), Int8(), TopK(0.1))
DTYPES = ("float32", "float32", "float64", "float16", "int64")
STALL_S = 20.0


@dataclass(frozen=True, slots=True)
class ExchangeCase:
    """What all ranks have alike. `tensors`: name -> (dtype, shape); `steps`: by rank; `pause_s`: most between two."""

    seed: int
    settings: ExchangeSettings
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]
    steps: tuple[int, ...]
    pause_s: float

    @property
    def exercised(self) -> Iterator[str]:
        """For the campaign's quotas."""
        yield "codec" if self.settings.codec is not None else "no codec"
        yield "two levels" if 1 < self.settings.ranks_per_node < len(self.steps) else "one level"
        if len(set(self.steps)) > 1:
            yield "uneven"
        if self.settings.streams > 1:
            yield "several streams"
        if self.settings.fragment_bytes < 1000:
            yield "fragments"


def drawn_case(seed: int, ranks: int) -> ExchangeCase:
    """The case of a seed."""
    rng = np.random.default_rng(seed)
    settings = ExchangeSettings(
        fusion_bytes=int(rng.choice([64, 512, 4096, 2**20])),
        fragment_bytes=int(rng.choice([64, 300, 2**20])),
        streams=int(rng.integers(1, 5)),
        codec=CODECS[rng.integers(len(CODECS))],
        ranks_per_node=int(rng.integers(1, 4)),
        cycle_s=float(rng.choice([0.0, 0.0005])),
        stall_s=STALL_S / 2,
        stall_limit_s=STALL_S,
        peer_s=STALL_S,
    )
    tensors = []
    for index in range(rng.integers(1, 13)):
        shape = tuple(int(size) for size in rng.integers(0 if rng.random() < 0.1 else 1, 15, rng.integers(0, 3)))
        tensors.append((f"t{index}", str(rng.choice(DTYPES)), shape))
    steps = rng.integers(1, 4, ranks) if rng.random() < 0.3 else np.full(ranks, rng.integers(1, 3))
    return ExchangeCase(seed, settings, tuple(tensors), tuple(map(int, steps)), float(rng.choice([0, 2e-4, 2e-3])))


def drawn_tensors(case: ExchangeCase, rank: int, step: int) -> dict[str, HostArray]:
    """What a rank has in a step."""
    rng = np.random.default_rng((case.seed, rank, step))
    return {name: np.asarray(rng.normal(size=shape) * 8).astype(dtype) for name, dtype, shape in case.tensors}


def play(case: ExchangeCase, exchange: GradientExchange) -> Iterator[dict[str, HostArray]]:
    """This rank's results, by step."""
    rank = exchange.rank
    rng = np.random.default_rng((case.seed, rank, 99))
    exchange.register(drawn_tensors(case, rank, 0), mean=False)
    for step in range(case.steps[rank]):
        mine = drawn_tensors(case, rank, step)
        for name in rng.permutation(sorted(mine)):
            exchange.announce(str(name), mine[str(name)])
            time.sleep(rng.random() * case.pause_s)
        if rng.random() < 0.5 and len(set(case.steps)) == 1:
            exchange.finish_step()
            asked = exchange.all_reduce("loss", np.full(2, float(rank)))
        else:
            asked = exchange.all_reduce("loss", np.full(2, float(rank)))
            exchange.finish_step()
        rows = exchange.all_gather("rows", np.full((rank % 3, 2), rank)) if len(set(case.steps)) == 1 else None
        mine["loss"] = asked.wait()
        if rows is not None:
            mine["rows"] = rows.wait()
        yield mine
    exchange.join()


def problems(case: ExchangeCase, rank: int, step: int, found: dict[str, HostArray]) -> Iterator[str]:
    """What is not as a sum over the ranks that have this step must be."""
    giving = [other for other, steps in enumerate(case.steps) if steps > step]
    of_ranks = [drawn_tensors(case, other, step) for other in giving]
    floats = [tensors[name] for tensors in of_ranks for name, dtype, _ in case.tensors if dtype == "float32"]
    largest = float(max((np.abs(array).max(initial=0.0) for array in floats), default=0.0))
    coarsest = largest * len(giving) * (len(giving) + 1) / 128  # Int8's: every term, and then the sum
    for name, dtype, _ in case.tensors:
        terms = [tensors[name].astype(np.float64) for tensors in of_ranks]
        wanted = np.sum(terms, axis=0)
        largest = float(max((np.abs(term).max(initial=0.0) for term in terms), default=0.0))
        bound = {"float32": 1e-6, "float16": 4e-3, "float64": 1e-14, "int64": 0.0}[dtype] * 4 * largest * len(terms)
        if dtype == "float32" and case.settings.codec is not None:
            if isinstance(case.settings.codec, TopK):
                continue
            bound = coarsest  # a scale is that of a block, in which other tensors may be larger
        if found[name].shape != wanted.shape or not (np.abs(found[name] - wanted) <= bound).all():
            yield f"rank {rank}, step {step}: {name} ({dtype}) is off by {np.abs(found[name] - wanted).max(initial=0)}"
    if not (found["loss"] == sum(giving)).all():
        yield f"rank {rank}, step {step}: loss is {found['loss']}, wanted {sum(giving)}"
    wanted_rows = [other for other in giving for _ in range(other % 3)]
    if "rows" in found and found["rows"][:, 0].tolist() != wanted_rows:
        yield f"rank {rank}, step {step}: rows are {found['rows'][:, 0].tolist()}"


def digest(found: dict[str, HostArray]) -> str:
    """The bits of all results of a step."""
    return hashlib.sha256(b"".join(found[name].tobytes() for name in sorted(found))).hexdigest()


def main(cases: int, first_seed: int) -> None:
    """Play them one after the other."""
    world = open_world()
    for seed in range(first_seed, first_seed + cases):
        case = drawn_case(seed, world.size)
        transport = MpiTransport(world, {})
        exchange = GradientExchange(transport, case.settings)
        wrong: list[str] = []
        digests = []
        for step, found in enumerate(play(case, exchange)):
            wrong += problems(case, world.rank, step, found)
            digests.append(digest(found))
        exchange.close()
        transport.close()
        told: list[Any] | None = world.gather((wrong, digests, exchange.order_digest))
        if told is None:
            continue
        failures = [line for lines, _, _ in told for line in lines]
        for step in range(max(case.steps)):
            bits = {of_rank[step] for _, of_rank, _ in told if len(of_rank) > step}
            failures += [f"step {step}: the ranks have different bits"] * (len(bits) > 1)
        if len({order for _, _, order in told}) > 1:
            failures.append("the ranks listed tensors in different orders")
        print(json.dumps({"seed": seed, "failures": failures, "exercised": sorted(case.exercised)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
