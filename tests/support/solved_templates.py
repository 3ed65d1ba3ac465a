"""Templates solved for a configuration that has a legal choice."""

from __future__ import annotations

from strategy.base.budget import UNLIMITED
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.point import FloatArray
from strategy.bounds.template_cut import TemplateName
from strategy.layout.config import PlanConfig
from strategy.search.template.template_solve import Chosen, solve_template


def solved_template(template: LayerTemplate, config: PlanConfig, weights: FloatArray) -> Chosen:
    """The layouts that cost least."""
    found = solve_template(TemplateName(config, tensor_axis=False), template, weights, UNLIMITED)
    assert isinstance(found, Chosen)
    return found
