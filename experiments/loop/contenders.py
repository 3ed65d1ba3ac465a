"""Contenders: plans of the small model that train against each other on this machine, in interleaved blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from executor.train import program_of
from experiments.jobs.small_model import GLOBAL_BATCH, MODEL
from experiments.loop.testbed import Testbed
from experiments.planning.prices import simulated_step
from strategy.base.files import read_json
from strategy.cost.calibrate import Calibration, read_calibration
from strategy.cost.cost import CostModel
from strategy.cost.measurement import Measurement
from strategy.hardware.cluster import Cluster
from strategy.hardware.cluster_file import read_cluster
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.models import find_model
from strategy.passes.training import Training
from strategy.plan.observe import act_overhead_s, features_by_action, observe
from strategy.plan.plan import Plan, write_plan
from strategy.program.timeline import Timeline, read_timeline
from strategy.search.candidate.rule_based_plans import plan_by_rule
from strategy.space.request import Request

WARM_UP_STEPS = 1
"""Steps at the start of every block that are not counted: the caches still hold another plan's tensors."""
UNDISTURBED = 0.02
"""Of a step, how long a rank may wait for a core where the step counts as the plan's own."""
LEARNING_RATE = 1e-3
"""At three times that the loss leaps on some texts, and what plans round otherwise grows with it."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Contender:
    """One plan in the competition, and what became of it.

    `undisturbed_s` are those of `samples_s` in which no rank waited for a core, or half of them where all did; `waited`
    is the share of the median step that a rank waited.
    """

    name: str
    plan: Plan
    samples_s: tuple[float, ...] = ()
    undisturbed_s: tuple[float, ...] = ()
    waited: float = 0.0
    losses: tuple[float, ...] = ()
    pids: tuple[int, ...] = ()
    timeline: Timeline | None = None
    rows: tuple[Measurement, ...] = ()
    overhead_s: float = 0.0
    refined_s: float = 0.0

    @property
    def predicted_s(self) -> float:
        """What the simulator said before any run."""
        return self.plan.claims.step_time_s

    @property
    def measured_s(self) -> float:
        """Median of the counted steps."""
        return median(self.samples_s)


def request_on(cluster: Cluster, cost: CostModel) -> Request:
    """A search for a plan of the small model on this machine's ranks."""
    training = Training(global_batch(cluster.devices), lr=LEARNING_RATE)
    return Request(MODEL, find_model(MODEL), training, cost, cluster.device.memory_bytes)


def global_batch(ranks: int) -> int:
    """The smallest batch of at least `GLOBAL_BATCH` samples that the ranks share evenly."""
    return -(-GLOBAL_BATCH // ranks) * ranks


def profiled(testbed: Testbed, folder: Path) -> tuple[Cluster, Calibration]:
    """What a testbed is, and its calibration, measured on all its ranks; both stay in `folder`.

    Raises:
        RunError: the job of ranks failed.
    """
    cluster, calibration = folder / "cluster.toml", folder / "profile.json"
    arguments = ["profile", "--out", str(calibration), "--write", str(cluster)]
    testbed.run("experiments", arguments, folder / "profile")
    return read_cluster(cluster), read_calibration(calibration)


def by_rule(
    request: Request,
    degrees: tuple[int, int, int],
    count: int,
    rules: tuple[str, str],
    schedule: Schedule = Schedule.ONE_F_ONE_B,
) -> Plan:
    """A plan as a person would write it: degrees (data, tensor, pipeline), micro-batches, a rule for each axis."""
    dp, tp, pp = degrees
    micro = request.training.global_batch // dp // count
    config = PlanConfig(dp, tp, pp, micro, count, schedule)
    return plan_by_rule(request, config, rules, simulated_step)


def timed(
    contenders: Sequence[Contender], testbed: Testbed, folder: Path, *, blocks: int, steps: int, progress: Progress
) -> list[Contender]:
    """Train all plans in interleaved blocks, in one job; their files, and what was measured, stay in `folder`.

    Raises:
        RunError: the job of ranks failed.
    """
    paths = []
    for contender in contenders:
        paths.append(folder / f"{contender.name}.json")
        write_plan(contender.plan, paths[-1])
    progress(f"timing {len(paths)} plans in {blocks} interleaved blocks of {steps} steps")
    job = [*map(str, paths), "--blocks", str(blocks), "--steps", str(steps), "--out", str(folder)]
    testbed.run("experiments.jobs.blocks", job, folder / "blocks")
    return [_measured(contender, folder, blocks=blocks, steps=steps) for contender in contenders]


def _measured(contender: Contender, folder: Path, *, blocks: int, steps: int) -> Contender:
    run: Any = read_json(folder / f"{contender.name}.run.json")
    timeline = read_timeline(folder / f"{contender.name}.timeline.json.gz")
    times = run["step_time_s"]
    counted = [block * steps + step for block in range(blocks) for step in range(WARM_UP_STEPS, steps)]
    shares = {step: run["waited_s"][step] / times[step] for step in counted}
    undisturbed = least_disturbed(shares)
    # The central half of the steps, so that its acts add up to the median step.
    cut = len(undisturbed) // 4
    typical = sorted(undisturbed, key=times.__getitem__)[cut : -cut or None]
    plan, features = contender.plan, features_by_action(contender.plan)
    rows = observe(timeline, program_of(plan), features, plan.cost, source=contender.name, steps=set(typical))
    return replace(
        contender,
        samples_s=tuple(times[step] for step in counted),
        undisturbed_s=tuple(times[step] for step in undisturbed),
        waited=median(shares.values()),
        losses=tuple(run["loss"]),
        pids=tuple(run["pids"]),
        timeline=timeline,
        rows=tuple(rows),
        overhead_s=act_overhead_s(timeline),
    )


def least_disturbed(waited: Mapping[int, float]) -> list[int]:
    """The steps, by the share of each that a rank waited, in which none did; the better half at least."""
    ordered = sorted(waited, key=lambda step: (waited[step], step))
    clean = sum(share <= UNDISTURBED for share in waited.values())
    return sorted(ordered[: max(clean, -(-len(ordered) // 2))])
