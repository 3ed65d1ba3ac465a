"""One step of a plan as the simulator predicts it, above the same step as it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.figures import timeline_figure
from strategy.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(simulated: Timeline, measured: Timeline) -> Figure:
    """Both timelines on one time axis."""
    return timeline_figure([simulated, measured])
