"""Ours against PyTorch on this machine's cores: the same model, weights, text and optimiser, step against step.

Every side is processes of its own that wait while others train (`cpu_sides`), in one clean environment, with one thread
per rank. Blocks of a few steps go round over all sides, so that a drift of the machine falls on all alike. Beside them
stands the floor: the products of the same step alone, each at its best rate on one core.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from executor.supervision.environment import clean_environment, find_mpiexec
from experiments.bench.cpu_models import CPU_MODELS, TRAINING
from experiments.bench.cpu_sides import END
from experiments.machine.machine import local_cluster
from experiments.planning.prices import simulated_step
from strategy.base.budget import UNLIMITED
from strategy.base.errors import EnvironmentLacks, RunError, present
from strategy.cost.cost import CostModel
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.plan.plan import Plan, write_plan
from strategy.search.candidate.rule_based_plans import plan_by_rule
from strategy.search.exchange_choice import with_exchange
from strategy.space.request import Request

Document = dict[str, Any]
STEPS = 4
"""Of a side in a block; the first block is left out of the times."""
RANKS = {"single": 1, "ddp": 2}


@dataclass(slots=True)
class WaitingSide:
    """A waiting contender; of its processes the first one's figures count."""

    name: str
    processes: list[subprocess.Popen[str]]
    ready: str = ""
    seconds: list[list[float]] = field(default_factory=list)
    """Of each step of each block."""
    losses: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Of the first rank, of each block."""

    def ask(self, line: object) -> Document:
        """Send all processes a line, and wait for what each says; the first one's.

        Raises:
            RunError: one of them has ended.
        """
        for process in self.processes:
            stream = present(process.stdin, "a pipe")
            stream.write(f"{line}\n")
            stream.flush()
        return self.hear()

    def hear(self) -> Document:
        """What each process says next; the first one's."""
        told = []
        for process in self.processes:
            line = present(process.stdout, "a pipe").readline()
            if not line:
                raise RunError(f"{self.name} ended with code {process.wait()}")
            told.append(json.loads(line))
        first: Document = told[0]
        return first

    def train(self, steps: int) -> None:
        """One block."""
        found = self.ask(steps)
        self.seconds.append(found["seconds"])
        self.losses += found["losses"]
        self.cpu_s.append(found["cpu_s"])

    @property
    def step_s(self) -> float:
        """Median over blocks, but the first, of the median step."""
        return median(median(block) for block in self.seconds[1:] or self.seconds)

    @property
    def step_cpu_s(self) -> float:
        """The same by the CPU time of the first rank, which other work on the machine hardly moves."""
        each = [cpu_s / len(block) for cpu_s, block in zip(self.cpu_s, self.seconds, strict=True)]
        return median(each[1:] or each)

    def end(self) -> None:
        """Let all processes go."""
        for process in self.processes:
            process.terminate()
            process.wait()


def compare(names: Sequence[str], folder: Path, blocks: int, progress: Callable[[str], None]) -> Document:
    """Every model on one rank and on two, by all sides.

    Raises:
        EnvironmentLacks: there is no PyTorch.
        RunError: a side failed.
    """
    if find_spec("torch") is None:
        raise EnvironmentLacks('PyTorch: not installed; `pip install "sbplan[torch]"` brings it')
    models = {}
    for name in names:
        models[name] = {form: _compared(name, form, folder / name / form, blocks, progress) for form in RANKS}
    first = models[names[0]]
    return {
        "blocks": blocks,
        "steps": STEPS,
        "ours_ddp_s": first["ddp"]["ours_s"],
        "torch_ddp_s": first["ddp"]["torch_s"],
        "ours_single_s": first["single"]["ours_s"],
        "torch_single_s": first["single"]["torch_s"],
        "ratio_ddp": first["ddp"]["ratio"],
        "ratio_single": first["single"]["ratio"],
        "models": models,
    }


def _compared(name: str, form: str, folder: Path, blocks: int, progress: Callable[[str], None]) -> Document:
    ranks = RANKS[form]
    folder.mkdir(parents=True, exist_ok=True)
    plan = folder / "plan.json"
    write_plan(data_parallel_plan(name, ranks), plan)
    sides: list[WaitingSide] = []
    try:
        for contender in ("ours", "eager", "compiled", "products"):
            sides.append(_started(contender, plan, ranks, folder))
            sides[-1].ready = sides[-1].hear()["ready"]
            progress(f"{name}, {ranks} ranks: {contender} ready, {sides[-1].ready}")
        for block in range(blocks + 1):
            for side in sides:
                side.train(STEPS)
            progress(f"{name}, {ranks} ranks: block {block} of {blocks}" + " (left out)" * (block == 0))
        for side in sides:
            side.ask(END)
        return summary_of(sides, folder)
    finally:
        for side in sides:
            side.end()


def data_parallel_plan(name: str, ranks: int) -> Plan:
    """A replica per rank, one micro-batch, buckets as a search would choose them."""
    cluster = local_cluster(ranks)
    request = Request(name, CPU_MODELS[name], TRAINING, CostModel(cluster, {}), cluster.device.memory_bytes)
    config = PlanConfig(ranks, 1, 1, TRAINING.global_batch // ranks, 1, Schedule.ONE_F_ONE_B)
    plan = plan_by_rule(request, config, ("data", "tensor"), simulated_step)
    return with_exchange(request, plan, simulated_step, UNLIMITED)


def _started(side: str, plan: Path, ranks: int, folder: Path) -> WaitingSide:
    out = (folder / f"{side}.npz").resolve()
    command = [sys.executable, "-P", "-m", "experiments.bench.cpu_sides"]
    if side == "ours":
        launched = [[str(find_mpiexec()), "-n", str(ranks), *command, side, str(plan), "--out", str(out)]]
    elif side == "products":
        launched = [[*command, side, str(plan), "--out", str(out)]]
    else:
        more = ["--ranks", str(ranks), *(["--compiled"] if side == "compiled" else [])]
        launched = [[*command, "torch", str(plan), "--out", str(out), "--rank", str(r), *more] for r in range(ranks)]
    Path(f"{out}.store").unlink(missing_ok=True)
    pipe = subprocess.PIPE
    environment = clean_environment()
    return WaitingSide(
        side, [subprocess.Popen(one, stdin=pipe, stdout=pipe, text=True, env=environment) for one in launched]
    )


def summary_of(sides: Sequence[WaitingSide], folder: Path) -> Document:
    """What follows of ours, eager, compiled and the products; parameters lie in `folder` by the sides' names."""
    import numpy as np

    ours, eager, compiled, floor = sides
    rival = min(eager, compiled, key=lambda side: side.step_s)
    with np.load(folder / "ours.npz") as mine, np.load(folder / f"{rival.name}.npz") as theirs:
        apart, where = max((float(np.abs(mine[name] - theirs[name]).max()), name) for name in mine.files)
    return {
        "ours_s": ours.step_s,
        "torch_s": rival.step_s,
        "rival": rival.name,
        "ratio": ours.step_s / rival.step_s,
        "products_s": floor.step_s,
        "ours_over_products": ours.step_s / floor.step_s,
        "besides_products_ratio": (ours.step_s - floor.step_s) / max(rival.step_s - floor.step_s, 1e-9),
        "losses": [ours.losses[0], ours.losses[-1]],
        "largest_loss_difference": max(abs(a - b) for a, b in zip(ours.losses, rival.losses, strict=True)),
        "largest_parameter_difference": apart,
        "largest_parameter_difference_of": where,
        "cpu_ratio": ours.step_cpu_s / min(eager.step_cpu_s, compiled.step_cpu_s),
        "cpu_over_products": ours.step_cpu_s / floor.step_cpu_s,
        "samples": {
            side.name: {
                "ready": side.ready,
                "step_s": side.step_s,
                "step_cpu_s": side.step_cpu_s,
                "seconds": side.seconds,
                "cpu_s": side.cpu_s,
                "losses": side.losses,
            }
            for side in sides
        },
    }


def lines(found: Document) -> str:
    """What people read."""
    told = []
    for name, forms in found["models"].items():
        for form, one in forms.items():
            told.append(
                f"{name}, {RANKS[form]} ranks: ours {one['ours_s'] * 1e3:.1f} ms, {one['rival']} PyTorch "
                f"{one['torch_s'] * 1e3:.1f} ms (ratio {one['ratio']:.2f}); products alone "
                f"{one['products_s'] * 1e3:.1f} ms (ours x {one['ours_over_products']:.2f}); besides products "
                f"{one['besides_products_ratio']:.2f} of PyTorch's; losses {one['losses'][0]:.3f} to "
                f"{one['losses'][1]:.3f}, apart by {one['largest_loss_difference']:.1e}, parameters by "
                f"{one['largest_parameter_difference']:.1e} ({one['largest_parameter_difference_of']}); by CPU time "
                f"{one['cpu_ratio']:.2f} of PyTorch, x {one['cpu_over_products']:.2f} of products"
            )
    return "\n".join(told) + "\n"
