"""Scaling: what a model's training reaches per GPU on more and more of them, by ways to cut it, with 90 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, COLUMN_IN, MARKERS
from strategy.closed_form.calibration import shipped
from strategy.closed_form.estimate import estimate
from strategy.closed_form.job import Job, Shape
from strategy.hardware.devices import DEVICES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GPT3 = Shape.transformer(96, 12288, 96, 4 * 12288, 51200)
SEQUENCE, BATCH = 2048, 1536
NODES = (12, 24, 48, 96, 192)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to cut the model."""

    name: str
    framework: str = "megatron"
    tp: int = 1
    pp: int = 1
    virtual: int = 1
    zero: int = 0


WAYS = (
    Way("8 x 12 tensor x pipeline", tp=8, pp=12),
    Way("8 x 12, interleaved by 4", tp=8, pp=12, virtual=4),
    Way("4 x 24", tp=4, pp=24),
    Way("ZeRO-3 alone", "deepspeed-zero", zero=3),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """One way: GPUs, and model TFLOP/s per GPU with the ends of its interval."""

    name: str
    gpus: tuple[int, ...]
    tflop_per_s: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def data() -> Sequence[Curve]:
    """GPT-3 (175 B) at a batch of 1,536 on A100s, everything recomputed."""
    calibration, flop = shipped(), model_flop()
    curves = []
    for way in WAYS:
        jobs = [job(8 * nodes, way) for nodes in NODES]
        found = estimate(jobs, calibration)
        mid, low, high = (
            tuple(flop / one.gpus / 1e12 / float(s) for one, s in zip(jobs, seconds, strict=True))
            for seconds in (found.seconds, found.high, found.low)
        )
        curves.append(Curve(way.name, tuple(one.gpus for one in jobs), mid, low, high))
    return curves


def job(gpus: int, way: Way) -> Job:
    """GPT-3 cut in one way; ZeRO's micro-batch is what a GPU gets, at most 4."""
    device = DEVICES["A100-80"]
    micro = 1 if way.pp > 1 else max(1, min(4, BATCH // gpus))
    return Job(
        GPT3, device, way.framework, "half", gpus, 8, device.nic_bytes_per_s, "infiniband", SEQUENCE, BATCH, micro,
        tp=way.tp, pp=way.pp, virtual=way.virtual, zero=way.zero, recompute="full",
    )  # fmt: skip


def model_flop() -> float:
    """FLOPs of a step without recomputing (Narayanan et al. 2021, equation 3, without its fourth pass)."""
    tokens, h = BATCH * SEQUENCE, GPT3.hidden
    return 72 * tokens * GPT3.layers * h**2 * (1 + SEQUENCE / (6 * h) + GPT3.vocab / (12 * GPT3.layers * h))


def figure(curves: Sequence[Curve]) -> Figure:
    """A line per way with its interval as a band; the number of GPUs doubles along the axis."""
    from matplotlib.figure import Figure

    found = Figure(figsize=(COLUMN_IN, 2.8), layout="constrained")
    axes = found.subplots()
    for curve, colour, marker in zip(curves, COLOURS, MARKERS, strict=False):
        axes.fill_between(curve.gpus, curve.low, curve.high, color=colour, alpha=0.12, linewidth=0)
        (line,) = axes.plot(curve.gpus, curve.tflop_per_s, color=colour, linewidth=1.2, label=curve.name)
        line.set(marker=marker, markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_xticks(curves[0].gpus, [str(gpus) for gpus in curves[0].gpus])
    axes.minorticks_off()
    axes.set(xlabel="A100 GPUs", ylabel="model TFLOP/s per GPU")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7)
    axes.set_title("GPT-3 (175 B), batch 1,536, everything recomputed", fontsize=8, loc="left")
    return found
