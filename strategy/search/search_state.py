"""Search state: proposals of layouts, and what plans have shown of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from strategy.base.errors import PlanError
from strategy.graph.signature import Signature
from strategy.hardware.cluster import host_memory_bytes
from strategy.layout.config import Offload, PlanConfig
from strategy.layout.schedule import Schedule
from strategy.search.template.layer_mix import LayerMix, mixed_layers
from strategy.search.template.stages import Pipelined
from strategy.space.request import Request

ALONE, PIPELINED = 1.0, 0.97
"""Memory as it is laid out over the sum of its parts, until a plan shows it: of a single stage; of a long pipeline,
whose blocks share places."""
SHORT, SHORT_OF_LAPS = 0.06, 0.2
"""On so much more, over the number of stages, a pipeline's blocks lie apart; where micro-batches pass several laps,
whose blocks are in use in turns that do not fit into each other. Some 40 plans held 0.90 to 1.06 of that, one 1.26."""
BETTER = 2e-3
"""By this part a proposal takes less than one of its configuration that was tried, if it is to be tried, too."""
HONEST = 0.03
"""By this part a plan may take longer by simulation than by the objective before that is held against its layouts."""
TELLING, SPREADS, CLOSE = 3, 3.0, 5e-3
"""So many plans tell how far simulations are off from objectives: what plans differ in, so many times, and a little."""
GATHERED = 0.07
"""By so much a pipeline's blocks lie further apart whose parameters are gathered, and gradients exchanged, in every
micro-batch: plans held 1.05 to 1.17 of what others do."""
HeldAlike = tuple[Schedule, bool, bool, Offload]
"""What configurations hold micro-batches alike: their schedule, whether they have a pipeline, and gather parameters,
and what waits on the host."""


@dataclass(frozen=True, slots=True)
class LayoutProposal:
    """A configuration with its layouts, as the short model has them.

    Attributes:
        found: what a step takes and holds.
        signatures: of the short model's ops.
        deep_ops: of the deep model.
        keeps: whether the layers between keep all, though the configuration computes something again.
        mix: of layers between that are treated otherwise.
    """

    found: Pipelined
    signatures: Mapping[str, Signature]
    deep_ops: int
    keeps: bool = False
    mix: LayerMix | None = None

    def config(self, layers: int) -> PlanConfig:
        """The configuration of so many layers, with those that keep all."""
        config = self.found.config
        mixed = frozenset[int]() if self.mix is None else mixed_layers(config, layers, self.mix.share)
        keeps = {
            layer for layer in range(1, layers - 1) if (self.mix.keeps if self.mix and layer in mixed else self.keeps)
        }
        return replace(config, kept_layers=tuple(sorted(keeps))) if keeps else config


def usual_margin(config: PlanConfig) -> float:
    """Memory as it is laid out over the sum of its parts, before any plan shows it."""
    if config.pp == 1:
        return ALONE
    gathered = GATHERED * (config.zero_stage == 3)
    return PIPELINED + (SHORT if config.virtual_stages == 1 else SHORT_OF_LAPS) / config.pp + gathered


def held_alike(config: PlanConfig) -> HeldAlike:
    """What a configuration has in common with those whose plans tell what it holds."""
    return config.schedule, config.pp > 1, config.zero_stage == 3, config.offload


@dataclass(slots=True)
class SearchState:
    """What has been found out: proposals, and whether all that may be better was looked at."""

    proposals: list[LayoutProposal] = field(default_factory=list)
    margins: dict[PlanConfig | HeldAlike, float] = field(default_factory=dict)
    """Memory as it was laid out over what is usual, where plans have shown it: the most of those alike."""
    shown: dict[PlanConfig, list[tuple[Mapping[str, Signature], float]]] = field(default_factory=dict)
    """The same of plans of a configuration, by the layouts of the first and the last layer."""
    is_hopeful: bool = False
    """Whether plans that are merely alike are not held against a configuration: where nothing else is left to try."""
    refused: bool = False
    """Whether some plan did not fit though it was likely to."""
    unplanned: dict[PlanConfig, PlanError] = field(default_factory=dict)
    """Configurations of which there is no plan, whatever their memory, and why."""
    complete: bool = True
    tried: dict[PlanConfig, float] = field(default_factory=dict)
    """Of which there are plans, or which do not fit as they are laid out: the nanoseconds that were proposed."""
    planned: dict[PlanConfig, float] = field(default_factory=dict)
    """The same, of which there are plans."""
    planned_ns: float = math.inf
    """The least that plans take, see `likely_ns`."""
    slower: dict[PlanConfig, float] = field(default_factory=dict)
    """Configuration -> by what factor its plan took longer by simulation than by the objective, where it is no little.
    So it is where gradients go in few buckets, for want of memory."""
    answer_ns: float = 0.0
    """That of the plan that is the answer so far."""
    paces: list[float] = field(default_factory=list)
    """Of plans: the time that each has taken over what it was expected to."""
    ratios: list[float] = field(default_factory=list)
    """Of plans: simulated time over the objective."""

    @property
    def pace(self) -> float:
        """Time that plans take over what they are expected to: the most that was seen."""
        return max(self.paces, default=1.0)

    @property
    def doubt(self) -> float:
        """By what part an objective may be more than another's and yet its plan the faster one, as plans have shown."""
        if len(self.ratios) < TELLING:
            return math.inf
        return CLOSE + SPREADS * (max(self.ratios) / min(self.ratios) - 1)

    def margin(self, config: PlanConfig, signatures: Mapping[str, Signature] | None = None) -> float:
        """What a sum of parts is multiplied by: as plans of the configuration have shown, or else others alike.

        `signatures`: of proposals of which plans with the same ones tell more, whatever layers are mixed in.
        """
        alike = 1.0 if self.is_hopeful else self.margins.get(held_alike(config), 1.0)
        known = self.margins.get(config, alike)
        shown = self.shown.get(config, ())
        more = max((seen for one, seen in shown if one is signatures or one == signatures), default=known)
        return more * usual_margin(config)

    def learn(self, one: LayoutProposal, nbytes: float) -> None:
        """What a plan holds says what the sum of the parts of others is worth; the most that was seen counts."""
        config = one.found.config
        seen = nbytes / max(one.found.peak_bytes) / usual_margin(config)
        for alike in (config, held_alike(config)):
            self.margins[alike] = max(self.margins.get(alike, 0.0), seen)
        self.shown.setdefault(config, []).append((one.signatures, seen))

    def forget(self, config: PlanConfig) -> None:
        """What was tried last did not fit: others of its configuration that hold less may, but for what is planned."""
        del self.tried[config]
        if config in self.planned:
            self.tried[config] = self.planned[config]

    def learn_time(self, one: LayoutProposal, objective_s: float, simulated_s: float) -> None:
        """A plan has shown what its proposal takes."""
        self.ratios.append(simulated_s / objective_s)
        if simulated_s > (1 + HONEST) * objective_s:
            self.slower[one.found.config] = simulated_s / objective_s
        self.planned_ns = min(self.planned_ns, objective_s * 1e9 * self.slower.get(one.found.config, 1.0))

    def likely_ns(self, one: LayoutProposal) -> float:
        """What a proposal is likely to take: by the objective, or longer, as a plan of its configuration has shown."""
        return one.found.step_ns * self.slower.get(one.found.config, 1.0)

    def fitting(self, request: Request) -> list[LayoutProposal]:
        """Those that are likely to fit, fastest first."""
        return sorted((one for one in self.proposals if self.fits(request, one)), key=self.likely_ns)

    def untried(self, request: Request) -> list[LayoutProposal]:
        """Those that are likely to fit, fastest first: of each configuration the first, if it is new enough."""
        found: dict[PlanConfig, LayoutProposal] = {}
        for one in self.fitting(request):
            if one.found.step_ns <= (1 - BETTER) * self.tried.get(one.found.config, math.inf):
                found.setdefault(one.found.config, one)
        return list(found.values())

    def fits(self, request: Request, one: LayoutProposal, *, spare: float = 0.0) -> bool:
        """Whether it is likely to, and to leave such a share of the device's memory free; and can be planned."""
        margin, there = self.margin(one.found.config, one.signatures), host_memory_bytes(request.cost.cluster)
        limits = request.memory_limits(one.found.config)
        held = all(margin * peak <= (1 - spare) * most for peak, most in zip(one.found.peak_bytes, limits, strict=True))
        return held and max(one.found.host_bytes) <= there and one.found.config not in self.unplanned
