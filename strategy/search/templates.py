"""Templates of a search: each is built once, and the latest are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from strategy.base.budget import Budget
from strategy.layout.config import PlanConfig
from strategy.models import Model
from strategy.search.candidate.candidates import Request
from strategy.search.template.layer_template import LayerTemplate

MOST = 32
"""A template of two axes holds some ten MiB."""


@dataclass(slots=True)
class Templates:
    """Of a short model, by what they depend on."""

    request: Request
    short: Model
    known: OrderedDict[object, LayerTemplate] = field(default_factory=OrderedDict)

    def full(self, config: PlanConfig, budget: Budget) -> LayerTemplate:
        """`LayerTemplate.of`."""
        key = config.dp, *on_axes(config), config.num_micro_batches, config.recompute, config.zero_stage
        return self._once(key, LayerTemplate.of, config, budget)

    def tensor_axis(self, config: PlanConfig, budget: Budget) -> LayerTemplate:
        """`LayerTemplate.of_tensor_axis`."""
        return self._once((*on_axes(config), config.recompute), LayerTemplate.of_tensor_axis, config, budget)

    def _once(
        self,
        key: object,
        make: Callable[[Request, Model, PlanConfig, Budget], LayerTemplate],
        config: PlanConfig,
        budget: Budget,
    ) -> LayerTemplate:
        if key not in self.known:
            self.known[key] = make(self.request, self.short, config, budget)
            if len(self.known) > MOST:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        return self.known[key]


def on_axes(config: PlanConfig) -> tuple[object, ...]:
    """What a template without data axis depends on, recomputing aside."""
    return config.tp, config.cp, config.context, config.micro_batch
