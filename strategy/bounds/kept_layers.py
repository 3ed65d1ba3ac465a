"""Kept layers: where what can be computed again is chosen freely, layers between the first and the last may keep it.

    first again   between: again, or kept, in any share that is the same on every stage   last again

A configuration that computes something again so stands for two ways to treat the layers between, and all their mixes:
what bounds a weighted sum over both, bounds it over mixes (`search.template.layer_mix`).
"""

from __future__ import annotations

from dataclasses import replace

from strategy.layout.config import PlanConfig, Recompute
from strategy.space.request import Request


def may_keep_layers(request: Request) -> bool:
    """Whether layers that are alike may differ in what they compute again; trainers cannot be told so."""
    pins = request.pins
    pinned = pins.recompute is not None or pins.recompute_values or pins.trainer is not None
    return not (pinned or request.deduction is not None or request.cost.cluster.groups)


def everything_kept(config: PlanConfig) -> PlanConfig:
    """The same, with nothing computed again in any layer."""
    return replace(config, recompute=Recompute.NONE)
