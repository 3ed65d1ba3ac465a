"""One step of a plan as the simulator predicts it, above the same step as it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from simulator.figures import timeline_figure
from strategy.graph.graph import Phase
from strategy.program.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(simulated: Timeline, measured: Timeline, phases: Mapping[str, Phase]) -> Figure:
    """Both timelines on one time axis; `phases` (actor name to phase) colours the computation."""
    return timeline_figure([simulated, measured], phases=phases)
