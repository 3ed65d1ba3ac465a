"""Binding: what a plan cannot do without: the fullest memory, the busiest stage, the busiest link."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.explanation.simulated import SimulatedPlan
from strategy.base.units import format_bytes
from strategy.cost.cost import PORTS, port_name
from strategy.lowering.memory import fullest, fullest_rank

TIGHT = 0.9
"""From this share of the memory on, it is said to bind."""


@dataclass(frozen=True, slots=True)
class BusiestStage:
    """The stage whose rank is busy longest, for this share of the step; the mean rank for that one."""

    stage: int
    stages: int
    share: float
    mean_share: float


@dataclass(frozen=True, slots=True)
class BusiestLink:
    """The port of a rank through which bytes pass longest, for this share of the time."""

    port: str
    rank: int
    share: float


@dataclass(frozen=True, slots=True)
class FullestMemory:
    """The rank that has least to spare, in bytes, and the largest tensors there when it holds most."""

    rank: int
    nbytes: int
    limit_bytes: int
    largest: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float:
        """Of the limit."""
        return self.nbytes / self.limit_bytes


@dataclass(frozen=True, slots=True)
class Binding:
    """What is fullest and busiest; `link` is None where nothing is sent."""

    memory: FullestMemory
    stage: BusiestStage
    link: BusiestLink | None

    def lines(self) -> list[str]:
        """In words, what is fullest of its limit first."""
        memory, stage = self.memory, self.stage
        tight = "binds" if memory.share >= TIGHT else "does not bind"
        name, nbytes = memory.largest[0] if memory.largest else ("nothing", 0)
        held, there = format_bytes(memory.nbytes), format_bytes(memory.limit_bytes)
        largest = f"the largest tensor is {name} with {format_bytes(nbytes)}"
        found = [f"memory {tight}: rank {memory.rank} holds {held} of {there} ({memory.share:.1%}), {largest}"]
        whose = f"stage, {stage.stage} (of 0 to {stage.stages - 1})," if stage.stages > 1 else "rank"
        found.append(f"the busiest {whose} works {stage.share:.1%} of the step, the mean rank {stage.mean_share:.1%}")
        if self.link is not None:
            link = self.link
            found.append(f"the busiest link, {link.port} of rank {link.rank}, moves bytes {link.share:.1%} of the time")
        return found


def binding(one: SimulatedPlan) -> Binding:
    """What binds a simulated plan."""
    plan, causes = one.plan, one.causes
    peaks, limit = plan.claims.peak_memory_bytes, plan.claims.memory_limit_bytes
    held, there = fullest_rank(plan.cluster, peaks, limit)
    rank = peaks.index(held)
    memory = FullestMemory(rank, held, there, fullest(one.program, rank).tensors[:5])
    stage_of = {device: i for i, stage in enumerate(plan.layout.stages.placements) for device in stage.devices}
    busiest = max(causes.busy_s, key=lambda rank: (causes.busy_s[rank], -rank))
    step_s = causes.step_time_s
    mean_s = sum(causes.busy_s.values()) / len(causes.busy_s)
    stage = BusiestStage(stage_of[busiest], plan.config.pp, causes.busy_s[busiest] / step_s, mean_s / step_s)
    return Binding(memory, stage, _busiest_link(one))


def _busiest_link(one: SimulatedPlan) -> BusiestLink | None:
    run = one.found.run
    busy_ns = {
        (port, rank): run.resource_busy_ns.get(port_name(port, rank), 0) for port in PORTS for rank in one.causes.busy_s
    }
    (port, rank), most_ns = max(busy_ns.items(), key=lambda item: item[1])
    return BusiestLink(port, rank, most_ns / run.acts.makespan_ns) if most_ns else None
