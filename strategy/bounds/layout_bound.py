"""Layout bound: what all layouts of one candidate cost at least under a mix of paths, with its proof.

A candidate's objective is the longest path through its schedule; so it takes no less than the least cost, over all
layouts, of the mean of some paths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strategy.bounds.path_mix import PathMix
from strategy.ilp.certificate.proof import Proof
from strategy.ilp.problem import FORBIDDEN
from strategy.layout.config import Offload, PlanConfig, Recompute

MOST_COST = FORBIDDEN // 2
"""What costs twice as much counts as illegal: so nothing more is proved of what is not."""


@dataclass(frozen=True, slots=True, eq=False)
class LayoutBound:
    """No layout of a candidate costs less.

    Attributes:
        mix: the paths whose length is the cost.
        within_memory: whether layouts that hold more than may be are left out.
        least: of the candidate's problem, in its own whole units; None where no choice is legal.
        proof: of that; None where not even signatures are left.
    """

    mix: PathMix
    within_memory: bool
    least: int | None
    proof: Proof | None

    def bound_ns(self, number: int) -> int:
        """What a step takes at least, where a nanosecond of it costs so much."""
        return MOST_COST // number if self.least is None else -(-self.least // number)


def saving_aside(config: PlanConfig) -> PlanConfig:
    """What candidates have in common that differ in how they save memory on the device alone.

    In groups of ZeRO there is no stage 0; what they exchange is no part of what is exchanged without them.
    """
    return replace(
        config,
        zero_stage=int(config.zero_group > 0),
        zero_owner=False,
        recompute=Recompute.NONE,
        recompute_values=(),
        offload=Offload.NONE,
        offload_values=(),
    )


def takes_no_less(config: PlanConfig, plainer: PlanConfig) -> bool:
    """Whether a candidate takes no less than another, memory aside, since it does all of it and more.

    What is computed again could have been kept, what a stage of ZeRO shares out gathered once, and what waits on the
    host, which is the slower one, stayed. Where activations wait there less of it is left by computing more again, and
    what is computed again reads the copies from the host in place of others.
    """
    if saving_aside(config) != saving_aside(plainer):
        return False
    if plainer.recompute_values not in ((), config.recompute_values) or plainer.offload_values != config.offload_values:
        return False
    if plainer.zero_stage not in (0, config.zero_stage) or plainer.offload not in config.offload.parts:
        return False
    if config.offload.of_activations != plainer.offload.of_activations:
        return plainer.recompute is Recompute.NONE
    return plainer.recompute in (config.recompute, *(Recompute.NONE,) * (not plainer.offload.of_activations))
