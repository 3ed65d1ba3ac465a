"""Kept layers: those between the first and the last that keep what others compute again, where they may.

    first again   between: again, or kept, in any share that is the same on every stage   last again

They may on a pipeline of one stage, or where a search is asked so. A configuration that computes something again then
stands for two ways to treat the layers between, and all their mixes (`search.template.layer_mix`). What bounds a
weighted sum in each way bounds that of mixes, too.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.layout.config import KeptLayers, PlanConfig, Recompute
from strategy.space.request import Request
from strategy.space.short_model import MIDDLE


def may_keep_layers(request: Request, config: PlanConfig) -> bool:
    """Whether layers that are alike may differ in what they compute again.

    Where nothing is pinned they may on a single stage, which no other split of the layers fills. Not where a trainer is
    written for, which cannot be told of single layers, nor where nodes are of several types, nor where activations wait
    on the host, which those that are computed again need not.
    """
    pins = request.pins
    if config.offload.of_activations:
        return False
    if pins.kept_layers is not None:
        return pins.kept_layers is KeptLayers.ANY
    is_free = pins.recompute is None and not pins.recompute_values and pins.trainer is None
    is_flat = config.pp == 1 and config.recompute is not Recompute.SELECTIVE
    return is_free and is_flat and not request.cost.cluster.groups


def ways_of(request: Request, config: PlanConfig) -> tuple[PlanConfig, ...]:
    """The ways that a configuration stands for, as the short model has them: computing again, and keeping between."""
    if config.recompute is Recompute.NONE or not may_keep_layers(request, config):
        return (config,)
    return config, replace(config, kept_layers=(MIDDLE,))
