"""The exchange of gradients on two emulated nodes: what it hides, against one stream and a ring, on one and two levels.

Every figure stands beside that of the simulator, for the link as it was shaped and the compute as it was measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from executor.supervision.launch import launch
from experiments.bench.exchange_trials import OURS, RIVAL_FUSION_BYTES, TrialTimes, store_of
from experiments.machine.emulated_nodes import find_obstacle, write_mpiexec
from strategy.base.errors import EnvironmentLacks, RunError

Document = dict[str, Any]
LATENCY_S = 100e-6
"""Of a message through the bridge, for the simulator."""
_COPY_BYTES_PER_S = 2e9
PAYLOAD = 1448 / 1514
"""Of a full Ethernet frame, that TCP with time stamps carries: the cables count whole frames."""
MOST_LOST = 0.9
"""Of the time in which gradients move, for compute beside it."""


@dataclass(frozen=True, slots=True)
class Inside:
    """How many ranks a node has, and what one sends to another there."""

    ranks: int = 1
    bytes_per_s: float = _COPY_BYTES_PER_S


def run_trials(folder: Path, blocks: int, gbit_per_s: float, progress: Callable[[str], None]) -> Document:
    """Both jobs, and what follows from their samples.

    Raises:
        EnvironmentLacks: no nodes can be emulated here.
        RunError: a job failed.
    """
    obstacle = find_obstacle()
    if obstacle is not None:
        raise EnvironmentLacks(obstacle)
    found: dict[str, Document] = {}
    for part, ranks in (("streams", 2), ("halves", 4), ("levels", 4)):
        progress(f"{part}: {ranks} ranks on two nodes, {gbit_per_s:g} Gbit/s between them")
        home, out = folder / part, (folder / f"{part}.json").resolve()
        home.mkdir(parents=True, exist_ok=True)
        store_of(out).unlink(missing_ok=True)
        argv = [sys.executable, "-P", "-m", "experiments.bench.exchange_trials", part]
        argv += ["--blocks", str(blocks), "--out", str(out)]
        code = launch(argv, ranks, folder=home, mpiexec=write_mpiexec(home.resolve(), gbit_per_s=gbit_per_s))
        if code:
            raise RunError(f"the trials of {part} ended with code {code}; see {home}")
        found[part] = json.loads(out.read_text())
    return {
        "gbit_per_s": gbit_per_s,
        "blocks": blocks,
        **_beside(found["streams"], gbit_per_s),
        "two_ranks_a_node": _beside(found["halves"], gbit_per_s),
        "levels": found["levels"]["sizes"],
        "profile": {name: found["levels"][name] for name in ("cluster", "measurements")},
    }


def _beside(samples: Document, gbit_per_s: float) -> Document:
    """What follows from the samples of one part, beside the simulator's figures."""
    trials = [TrialTimes(one["name"], one["side"], tuple(one["seconds"])) for one in samples["trials"]]
    measured = summary(trials)
    inside = Inside(samples["ranks_per_node"], samples["inside_bytes_per_s"] or _COPY_BYTES_PER_S)
    said = simulated(
        samples["gradient_bytes"], samples["products"], measured["compute_s"], gbit_per_s, measured["slowdown"], inside
    )
    return {**measured, "simulated": said, "samples": samples}


def summary(trials: Sequence[TrialTimes]) -> Document:
    """Medians over blocks; each side at its best bucket size.

    hidden share = (serial - overlapped) / min(compute, communication)
    slowdown     = of compute while gradients move, as a share of its time, where all of them are announced ahead of it
    """
    middle = {one.name: median(one.seconds) for one in trials}
    ours, rival = (_best(trials, side, middle) for side in ("ours", "rival"))
    ours_alone_s, rival_alone_s = (middle[_best(trials, f"{side} alone", middle)] for side in ("ours", "rival"))
    ddp = _best(trials, "ddp", middle) if any(one.side == "ddp" for one in trials) else None
    smaller = min(middle["compute"], middle["communication"])
    lost = min(max(middle["ahead"] - middle["compute"], 0.0) / smaller, MOST_LOST)
    return {
        "compute_s": middle["compute"],
        "communication_s": middle["communication"],
        "serial_s": middle["serial"],
        "slowdown": lost / (1 - lost),
        "ours": ours,
        "ours_s": middle[ours],
        "rival": rival,
        "rival_s": middle[rival],
        "ddp": ddp,
        "ddp_s": middle[ddp] if ddp else None,
        "hidden_share": (middle["serial"] - middle[ours]) / smaller,
        "rival_over_ours": middle[rival] / middle[ours],
        "ours_alone_s": ours_alone_s,
        "rival_alone_s": rival_alone_s,
        "rival_over_ours_alone": rival_alone_s / ours_alone_s,
    }


def _best(trials: Sequence[TrialTimes], side: str, middle: Mapping[str, float]) -> str:
    return min((one.name for one in trials if one.side == side), key=middle.__getitem__)


def simulated(
    nbytes: Sequence[int],
    products: Sequence[int],
    compute_s: float,
    gbit_per_s: float,
    slowdown: float = 0.0,
    inside: Inside | None = None,
) -> Document:
    """Steps of the same gradients and the measured compute by both schemes, each at its best of the same sizes."""
    from simulator.exchange.fabric import Fabric
    from simulator.exchange.horovod import Horovod
    from simulator.exchange.streams import Streams
    from simulator.exchange.training import Scheme, simulate
    from simulator.exchange.workload import ComputeSpan, Workload
    from strategy.base.units import GBIT_PER_S, to_ns

    nic, inside = PAYLOAD * gbit_per_s * GBIT_PER_S, inside or Inside()
    copy = inside.bytes_per_s
    fabric = Fabric(2, inside.ranks, copy, copy, nic, nic, LATENCY_S, LATENCY_S, straggle=0.0, slowdown=slowdown)
    last = len(nbytes) - 1

    def workload(compute_s: float) -> Workload:
        """Gradients are numbered as the next step needs them: the last computed first."""
        each_s = compute_s / sum(products)
        spans = [ComputeSpan(1, needs=tuple(range(len(nbytes))))]
        spans += [
            ComputeSpan(max(1, to_ns(each_s * count)), gives=(last - number,)) for number, count in enumerate(products)
        ]
        return Workload("encoder", tuple(spans), tuple(reversed(nbytes)))

    def best_s(schemes: list[Scheme], compute_s: float) -> float:
        return min(simulate(workload(compute_s), fabric, scheme).step_ns for scheme in schemes) / 1e9

    ours: list[Scheme] = [Streams(streams, fusion) for streams, fusion in OURS]
    rival: list[Scheme] = [Horovod(fusion, cycle_s=1e-3, cached=True, rings=1) for fusion in RIVAL_FUSION_BYTES]
    ours_s, rival_s = best_s(ours, compute_s), best_s(rival, compute_s)
    alone_s, rival_alone_s = best_s(ours, 0.0), best_s(rival, 0.0)
    return {
        "communication_s": alone_s,
        "ours_s": ours_s,
        "rival_s": rival_s,
        "hidden_share": (compute_s + alone_s - ours_s) / min(compute_s, alone_s),
        "rival_over_ours": rival_s / ours_s,
        "ours_alone_s": alone_s,
        "rival_alone_s": rival_alone_s,
        "rival_over_ours_alone": rival_alone_s / alone_s,
    }


def lines(found: Document) -> str:
    """What people read."""
    two = found["two_ranks_a_node"]
    told = ["a rank on each node, products:", *_lines_of(found), "two ranks on each node, waits:", *_lines_of(two)]
    for size in found["levels"]:
        one, two = median(size["one_level_s"]), median(size["two_levels_s"])
        chosen = "two levels" if size["plan_chooses_two"] else "one level"
        told.append(
            f"all-reduce of {size['nbytes']} bytes over 4 ranks: one level {one * 1e3:.1f} ms (predicted "
            f"{size['predicted_one_level_s'] * 1e3:.1f}), two levels {two * 1e3:.1f} ms; a plan takes {chosen} "
            f"(predicted {size['predicted_chosen_s'] * 1e3:.1f})"
        )
    return "\n".join(told) + "\n"


def _lines_of(found: Document) -> list[str]:
    said = found["simulated"]
    told = [
        f"compute {found['compute_s'] * 1e3:.0f} ms, communication {found['communication_s'] * 1e3:.0f} ms "
        f"(simulated {said['communication_s'] * 1e3:.0f}), one after the other {found['serial_s'] * 1e3:.0f} ms",
        f"compute is slowed down by {found['slowdown']:.0%} while gradients move, as seen where all go ahead of it",
        f"hidden {found['hidden_share']:.0%} (simulated {said['hidden_share']:.0%})",
        f"{found['ours']}: {found['ours_s'] * 1e3:.0f} ms (simulated {said['ours_s'] * 1e3:.0f})",
        f"{found['rival']}: {found['rival_s'] * 1e3:.0f} ms (simulated {said['rival_s'] * 1e3:.0f})",
        f"rival over ours {found['rival_over_ours']:.2f} (simulated {said['rival_over_ours']:.2f})",
        f"without compute {found['rival_alone_s'] * 1e3:.0f} ms (simulated {said['rival_alone_s'] * 1e3:.0f}) over "
        f"{found['ours_alone_s'] * 1e3:.0f} ms (simulated {said['ours_alone_s'] * 1e3:.0f}): "
        f"{found['rival_over_ours_alone']:.2f} (simulated {said['rival_over_ours_alone']:.2f})",
    ]
    if found["ddp"]:
        told.append(f"PyTorch's {found['ddp']}: {found['ddp_s'] * 1e3:.0f} ms")
    return ["  " + line for line in told]
