"""Kept layers: where a search is asked so, layers between the first and the last may keep what others compute again.

    first again   between: again, or kept, in any share that is the same on every stage   last again

A configuration that computes something again then stands for two ways to treat the layers between, and all their mixes
(`search.template.layer_mix`). What bounds a weighted sum in each way bounds that of mixes, too.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.layout.config import KeptLayers, PlanConfig, Recompute
from strategy.space.request import Request
from strategy.space.short_model import MIDDLE


def may_keep_layers(request: Request) -> bool:
    """Whether layers that are alike may differ in what they compute again."""
    return request.pins.kept_layers is KeptLayers.ANY


def ways_of(request: Request, config: PlanConfig) -> tuple[PlanConfig, ...]:
    """The ways that a configuration stands for, as the short model has them: computing again, and keeping between."""
    if config.recompute is Recompute.NONE or not may_keep_layers(request):
        return (config,)
    return config, replace(config, kept_layers=(MIDDLE,))
