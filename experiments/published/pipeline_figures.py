"""The arithmetic of pipelines, from acts: idle shares, bubbles and micro-batches in flight of four equal stages."""

from __future__ import annotations

from experiments.published.source_figure import SourceFigure, near
from simulator.pipelines import pipeline
from simulator.simulate import Simulation, simulate

_SOURCE = "Narayanan et al. 2021, section 2.2, and OneFlow's article on GPT-3"
_STAGES, _MICRO_BATCHES = 4, 8


def pipeline_figures() -> list[SourceFigure]:
    """Without accumulation, GPipe, 1F1B, and 1F1B with fewer micro-batches in flight."""
    gpipe, steady = (_run(schedule, _MICRO_BATCHES) for schedule in ("gpipe", "1f1b"))
    alone = _run("1f1b", 1)
    return [
        _bubble_fractions("idle share without accumulation, 4 stages", {"1f1b": 3 / 4}, {"1f1b": alone}),
        _bubble_fractions("idle share, 4 stages, 8 micro-batches", dict.fromkeys(("gpipe", "1f1b"), 3 / 11),
                {"gpipe": gpipe, "1f1b": steady}),
        _overhead("bubble over ideal time, 4 stages, 8 micro-batches", {"gpipe": gpipe, "1f1b": steady}),
        _in_flight({"gpipe": gpipe, "1f1b": steady}),
        _bubble_fractions("idle share by micro-batches in flight", {"1": 3 / 4, "2": 9 / 17, "3": 5 / 13, "4": 3 / 11},
                {str(cap): _run("1f1b", _MICRO_BATCHES, cap) for cap in (1, 2, 3, 4)}),
    ]  # fmt: skip


def _run(schedule: str, micro_batches: int, cap: int | None = None) -> Simulation:
    return simulate(pipeline(_STAGES, micro_batches, schedule, cap=cap))


def _bubble_fractions(name: str, published: dict[str, float], found: dict[str, Simulation]) -> SourceFigure:
    values = {key: run.idle_share for key, run in found.items()}
    text = ", ".join(f"{key} {100 * share:.1f} %" for key, share in published.items())
    return SourceFigure(name, _SOURCE, text, "exact", values, near(values, published, 1e-9))


def _overhead(name: str, found: dict[str, Simulation]) -> SourceFigure:
    values = {key: run.bubble_overhead for key, run in found.items()}
    published = dict.fromkeys(values, (_STAGES - 1) / _MICRO_BATCHES)
    return SourceFigure(name, _SOURCE, "(p - 1) / m = 37.5 %", "exact", values, near(values, published, 1e-9))


def _in_flight(found: dict[str, Simulation]) -> SourceFigure:
    """The stash of a micro-batch has 4 bytes."""
    held = {key: [nbytes // 4 for nbytes in run.peak_memory_bytes] for key, run in found.items()}
    values = {f"{key} stage {s}": float(count) for key, counts in held.items() for s, count in enumerate(counts)}
    within = held == {"gpipe": [8, 8, 8, 8], "1f1b": [4, 3, 2, 1]}
    return SourceFigure(
        "micro-batches in flight", _SOURCE, "GPipe 8 everywhere, 1F1B 4 on the first stage", "exact", values, within
    )
