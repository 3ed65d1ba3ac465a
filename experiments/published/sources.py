"""Figures that the sources print, simulated again: what each says, how near is near enough, and what comes out.

No figure has a constant of its own: rates and latencies are those of data sheets, NCCL's tables and the shipped
calibration, and are the same for every figure of a kind of network.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.published.source_figure import SourceFigure


def all_figures() -> list[SourceFigure]:
    """Every figure, simulated now."""
    from experiments.published.exchange_figures import exchange_figures
    from experiments.published.job_figures import job_figures
    from experiments.published.pipeline_figures import pipeline_figures

    return [*pipeline_figures(), *job_figures(), *exchange_figures()]


def as_table(figures: Sequence[SourceFigure]) -> str:
    """Two lines per figure: what was published, and what is simulated."""
    lines = []
    for figure in figures:
        values = ", ".join(f"{name} {value:.4g}" for name, value in figure.simulated.items())
        lines.append(f"{'within ' if figure.within else 'OUTSIDE'}  {figure.name} ({figure.source})")
        lines.append(f"{'':9}published {figure.published}; tolerance {figure.tolerance}")
        lines.append(f"{'':9}simulated {values}")
    return "\n".join(lines)
