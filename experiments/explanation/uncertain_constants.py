"""Uncertain constants: which figure prices an act, how far that may be off, and what would measure it.

What one figure prices shares a constant: all acts of a kind that a calibration fitted (`CostKey`), else all acts that
one figure of the data sheet stands for, such as the links between nodes. A constant is off by one factor for all its
acts, which is log-normal and lies with 90 % between exp(-h) and exp(h), h being its half-width:

    fitted      ln(1 + spread), the 90th percentile of what its rows lay off the fit
    data sheet  what the closed form was off on systems of which its fit had seen no run (`closed_form.interval`)

The constants of a kind are three, so that a fit of as many rows says nothing of its error: it takes the data sheet's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from strategy.closed_form.calibration import shipped
from strategy.cost.calibrate import Calibration
from strategy.cost.measurement import CostKey, Features
from strategy.graph.ops import cost_class
from strategy.graph.ops.traits import Attention, Convolution, Movement, counts_flop
from strategy.sbp.placement import Space

CONSTANTS_OF_A_KIND = 3
LINKS = {"intra": "links inside of nodes", "inter": "links between nodes"}
HOST_LINK, HOST = "links to the host", "work of the host"
ATTENTION, CONVOLUTIONS, PRODUCTS, MEMORY = "fused attention", "convolutions", "matrix products", "memory-bound kernels"
COLLECTIVES = "time its collectives there (nccl-tests, read by 'sbplan refine')"
PROFILE = "run 'sbplan profile' on the cluster"


def unseen_half_width() -> float:
    """Of the logarithm of a step, where nothing of a system was measured."""
    return shipped().strata[""].half_width


@dataclass(frozen=True, slots=True)
class UncertainConstants:
    """Half-widths by the name of a constant, of kinds that were fitted; all others are the data sheet's."""

    fitted: Mapping[CostKey, float] = field(default_factory=dict)

    @staticmethod
    def of(calibration: Calibration | None) -> UncertainConstants:
        """Those of a calibration, or of the data sheet alone."""
        if calibration is None:
            return UncertainConstants()
        return UncertainConstants(
            {
                key: math.log1p(found.spread) if found.rows > CONSTANTS_OF_A_KIND else unseen_half_width()
                for key, found in calibration.fitted.items()
            }
        )

    def name_of(self, features: Features) -> str:
        """The constant that prices an act on one level."""
        return str(features.key) if features.key in self.fitted else figure_of(features)

    def half_width(self, name: str) -> float:
        """How far the logarithm of a constant may be off."""
        key = self._kind(name)
        return unseen_half_width() if key is None else self.fitted[key]

    def measured_by(self, name: str) -> str:
        """What to do to know a constant better."""
        key = self._kind(name)
        on_links = name in LINKS.values() if key is None else bool(key.level)
        return COLLECTIVES if on_links else PROFILE

    def _kind(self, name: str) -> CostKey | None:
        """The fitted kind that a constant is of, if it is of one."""
        return next((key for key in self.fitted if str(key) == name), None)


def figure_of(features: Features) -> str:
    """The figure of the data sheet that prices an act of a kind that was not measured."""
    cost = cost_class(features.kind)
    if features.level:
        return LINKS[features.level]
    if isinstance(cost, Movement):
        return HOST_LINK
    if features.space is Space.HOST:
        return HOST
    if isinstance(cost, Attention):
        return ATTENTION
    if isinstance(cost, Convolution):
        return CONVOLUTIONS
    return PRODUCTS if counts_flop(cost) else MEMORY
