"""Depths: a job priced by its closed form and by the simulated acts of its program, and the difference by cause.

Both read the same sheets, kernels, fitted figures and NCCL figures. The closed form knows a job
(`strategy.closed_form`); the program is the job's graph, lowered and run act by act, laid out by Megatron's rules.
A job is priced by the closed form twice: with the software that it was trained with, and with that of the acts, whose
attention is fused and whose memory-bound kernels move what they read and write. The difference of the acts is that from
the latter. Seconds are those of the rank that computes longest, and each cause is measured for itself:

    compute                 some act computes, slowed down beside communication or not
    exposed communication   some act communicates and none computes
    bubble                  nothing is under way
    other                   what is left of the rank's acts: loading and slicing, outside of the others

In the closed form `other` is what the host adds to the device's time, and what a step costs beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from simulator.acts import Acts
from simulator.simulate import simulate
from strategy.closed_form.calibration import FittedConstants
from strategy.closed_form.job import Job, Jobs
from strategy.closed_form.price import Pricing
from strategy.cost.cost import CostModel
from strategy.hardware.presets import PRESETS
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.convert import lay_out
from strategy.layout.objective import Priced
from strategy.layout.schedule import Schedule
from strategy.lowering.lower import lower_priced
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.program.program import ActKind, Program, time_alone_ns
from strategy.space.candidate_space import space_of
from strategy.space.deduce import deduce
from strategy.space.request import Request

_RULES = ("data", "tensor as it lies")
"""Megatron's; what they leave open is deduced, op by op, so that no search decides what is compared."""
CAUSES = ("compute", "exposed_communication", "bubble", "other")


@dataclass(frozen=True, slots=True)
class Depth:
    """Seconds of a step, and what they go to: by cause, and by part within a cause."""

    step_s: float
    causes: Mapping[str, float]
    parts: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Depths:
    """A job priced both ways; `busiest_stage` is that of the acts, counted from 0.

    `closed_form` is of the acts' software, `as_trained` of that which the job was trained with.
    """

    job: str
    as_trained: Depth
    closed_form: Depth
    acts: Depth
    busiest_stage: int

    @property
    def difference(self) -> dict[str, float]:
        """Seconds of the acts over those of the closed form, by cause."""
        return {cause: self.acts.causes[cause] - self.closed_form.causes[cause] for cause in CAUSES}


def depths(name: str, job: Job, fitted: FittedConstants) -> Depths:
    """Price one job of Megatron's on A100s both ways."""
    program = program_of(job)
    acts = simulate(program, steps=1).run.acts
    stage, found = _of_acts(program, acts)
    same = replace(job, framework="acts", flash=True)
    return Depths(name, closed_form(job, fitted), closed_form(same, fitted), found, stage)


def closed_form(job: Job, fitted: FittedConstants) -> Depth:
    """A step by the formulas."""
    pricing = Pricing(Jobs.of([job]), fitted.constants)
    found = pricing.causes(fitted.constants)
    by_cause = (found.compute, found.exposed, found.bubble, found.other)
    parts = {
        cause: {part: float(np.ravel(seconds)[0]) for part, seconds in of_cause.items()}
        for cause, of_cause in zip(CAUSES, by_cause, strict=True)
    }
    return Depth(float(pricing.seconds(fitted.constants)[0]), _summed(parts), parts)


def program_of(job: Job) -> Program:
    """The job's step as acts, one rank standing for all of its stage where they are alike."""
    shape = job.shape
    model = GptConfig(shape.layers, shape.hidden, shape.heads, job.seq, shape.vocab)
    count = job.global_batch // (job.dp * job.micro_batch)
    training = Training(job.global_batch, count, precision=Precision.FP16)
    config = PlanConfig(
        job.dp,
        job.tp,
        job.pp,
        job.micro_batch,
        count,
        Schedule.INTERLEAVED if job.virtual > 1 else Schedule.ONE_F_ONE_B,
        virtual_stages=job.virtual,
        recompute=Recompute(job.recompute),
    )
    node = replace(PRESETS["dgx-a100"], devices_per_node=min(job.gpus, job.gpus_per_node))
    cost = CostModel(replace(node, nodes=job.gpus // node.devices_per_node), {})
    request = Request("gpt", model, training, cost, memory_limit_bytes=2**50)
    space = space_of(request, config, _RULES)
    signatures = deduce(space.graph, space.stages, space.converter, space.allows, owned=space.owned)
    layout = lay_out(space.graph, space.stages, signatures, space.converter)
    priced = Priced(space.graph, layout, space.pipeline, cost)
    return lower_priced(priced, tokens_per_step=job.global_batch * job.seq, folds=True, folded_from=1)


def _of_acts(program: Program, acts: Acts) -> tuple[int, Depth]:
    """The stage whose rank computes longest, and what its time goes to."""
    computes = np.array([actor.kind is ActKind.COMPUTE for actor in program.actors])[acts.actor]
    moves = np.array([actor.kind.is_communication for actor in program.actors])[acts.actor]
    rank = np.array([stream.rank for stream in program.streams])[acts.stream]
    alone_ns = np.array([_alone_ns(program, number) for number in range(len(program.actors))])[acts.actor]
    ranks = sorted({stream.rank for stream in program.streams})
    by_rank = {one: _covered_ns(acts, computes & (rank == one)) for one in ranks}
    busiest = max(ranks, key=lambda one: by_rank[one])
    mine = rank == busiest
    compute_ns = by_rank[busiest]
    busy_ns, under_way_ns = _covered_ns(acts, (computes | moves) & mine), _covered_ns(acts, mine)
    priced_ns = int(alone_ns[computes & mine].sum())
    parts = {
        "compute": {"alone": priced_ns / 1e9, "slowed": (compute_ns - priced_ns) / 1e9},
        "exposed_communication": {"all": (busy_ns - compute_ns) / 1e9},
        "bubble": {"nothing under way": (acts.makespan_ns - under_way_ns) / 1e9},
        "other": {"loads and slices": (under_way_ns - busy_ns) / 1e9},
    }
    return ranks.index(busiest), Depth(acts.makespan_ns / 1e9, _summed(parts), parts)


def _alone_ns(program: Program, actor: int) -> int:
    """What an act takes that shares nothing."""
    work = program.actors[actor].work
    moved = (time_alone_ns(nbytes, program.resources[port]) for port, nbytes in work.demands)
    return work.latency_ns + max(moved, default=0)


def _covered_ns(acts: Acts, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """Nanoseconds in which at least one of some acts is under way."""
    order = np.argsort(acts.start_ns[chosen], kind="stable")
    start_ns, end_ns = acts.start_ns[chosen][order], acts.end_ns[chosen][order]
    before_ns = np.concatenate(([0], np.maximum.accumulate(end_ns)[:-1])) if len(end_ns) else end_ns
    return int(np.maximum(end_ns - np.maximum(start_ns, before_ns), 0).sum())


def _summed(parts: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {cause: sum(parts[cause].values()) for cause in CAUSES}


def document(found: Depths) -> dict[str, object]:
    """The JSON document of one job."""
    return {**asdict(found), "difference": found.difference}


def header() -> str:
    """The head of a table of `line`s."""
    causes = "".join(f"{cause.replace('_', ' '):>23}" for cause in CAUSES)
    return f"{'job':<8}{'as trained':>12}{'closed form':>13}{'acts':>10}{'difference':>12}{causes}"


def line(found: Depths) -> str:
    """Seconds of a job both ways, and the difference by cause in percent of the closed form's step."""
    whole = found.closed_form.step_s
    shares = "".join(f"{100 * found.difference[cause] / whole:>+21.1f} %" for cause in CAUSES)
    total = 100 * (found.acts.step_s / whole - 1)
    trained = f"{found.as_trained.step_s:>10.2f} s"
    return f"{found.job:<8}{trained}{whole:>11.2f} s{found.acts.step_s:>8.2f} s{total:>+10.1f} %{shares}"
