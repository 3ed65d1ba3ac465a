"""Whole jobs: GPT with a trillion and with 175 billion parameters on A100s, and OneFlow beside Megatron on V100s.

Steps are simulated from acts (`job_acts`) that the shipped calibration prices, which is fitted to runs of the same
systems.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from experiments.published.fitting import TRAINING, reference
from experiments.published.job_acts import simulated_seconds
from experiments.published.megatron import GPT3, TRILLION, megatron_job
from experiments.published.predictions import Mixture
from experiments.published.rows import read_rows
from experiments.published.source_figure import SourceFigure, near
from strategy.closed_form.calibration import shipped
from strategy.closed_form.job import Job

_PAPER = "Narayanan et al. 2021 (arXiv:2104.04473)"
_TOKENS = 300e9
_DAY_S = 86400.0
_GPT = "dlperf_gpt_"
SYSTEMS_COMPARED = ("oneflow", "megatron")


def job_figures() -> list[SourceFigure]:
    """A trillion parameters, a month of GPT-3, and OneFlow over Megatron."""
    return [trillion(), month(), oneflow()]


def _seconds(jobs: list[Job]) -> float:
    """Mean over what a job may have been."""
    return float(simulated_seconds(jobs, shipped()).mean())


def _flop(job: Job, passes: int) -> float:
    """Of a step: 4 passes through the layers with recompute, 3 without, of 24 b s l h^2 each (the paper's section 5.1).

    Logits are computed once and differentiated twice in either.
    """
    s, b, layers, hidden, vocab = job.seq, job.global_batch, job.shape.layers, job.shape.hidden, job.shape.vocab
    return 24.0 * b * s * hidden**2 * (passes * layers * (1 + s / (6 * hidden)) + 3 * vocab / (12 * hidden))


def trillion(nic_share: float = 1.0, pp: int = 64) -> SourceFigure:
    """What is sent between nodes goes over so much of the NICs."""
    job = megatron_job(TRILLION, 3072, pp=pp, global_batch=3072, micro_batch=1)
    job = replace(job, nic_bytes_per_s=nic_share * job.nic_bytes_per_s)
    per_gpu_s = _seconds([job]) * job.gpus
    hardware, model = (_flop(job, passes) / per_gpu_s for passes in (4, 3))
    values = {"TFLOP/s": hardware / 1e12, "HFU": hardware / job.device.half, "MFU": model / job.device.half}
    within = near(values, {"TFLOP/s": 163.0, "HFU": 0.52, "MFU": 0.39}, 0.05)
    published = "163 TFLOP/s, 52 % with recompute, 39 % without"
    return SourceFigure("1 T on 3,072 A100, [6 x 8 x 64]", _PAPER, published, "5 %", values, within)


def month(gpus: int = 1024) -> SourceFigure:
    """How the GPUs were cut is not published: the mean over what is usual."""
    jobs = [
        megatron_job(GPT3, gpus, pp=pp, global_batch=1536, micro_batch=b, virtual=v)
        for pp in (4, 8, 16) for b in (1, 2) for v in (1, 2)
    ]  # fmt: skip
    days = _seconds(jobs) * _TOKENS / (jobs[0].global_batch * jobs[0].seq) / _DAY_S
    return SourceFigure(
        "GPT-3, 300 B tokens on 1,024 A100",
        _PAPER,
        "34 days",
        "10 %",
        {"days": days},
        near({"days": days}, {"days": 34.0}, 0.10),
    )


@dataclass(frozen=True, slots=True)
class FrameworkStep:
    """Seconds of a step of one system on one configuration: simulated, and as measured."""

    configuration: str
    system: str
    simulated_s: float
    measured_s: float


def framework_steps() -> list[FrameworkStep]:
    """Of all open configurations of GPT that OneFlow and Megatron both ran on V100s."""
    rows = [row for row in read_rows(reference(TRAINING[0])) if row.cells["row_id"].startswith(_GPT)]
    jobs = [candidate.job for row in rows for candidate in row.candidates]
    simulated = Mixture.of(rows).mean(simulated_seconds(jobs, shipped()))
    steps = []
    for row, seconds in zip(rows, simulated.tolist(), strict=True):
        system, _, configuration = row.cells["row_id"].removeprefix(_GPT).partition("_")
        steps.append(FrameworkStep(configuration, system, seconds, float(row.cells["iter_time_s"])))
    counts = Counter(step.configuration for step in steps)
    return [step for step in steps if counts[step.configuration] == len(SYSTEMS_COMPARED)]


def oneflow() -> SourceFigure:
    """Of all open configurations that both ran."""
    steps = {(step.configuration, step.system): step for step in framework_steps()}
    names = dict.fromkeys(configuration for configuration, _ in steps)
    values, published = (
        {name: getattr(steps[name, "megatron"], key) / getattr(steps[name, "oneflow"], key) for name in names}
        for key in ("simulated_s", "measured_s")
    )
    text = f"{min(published.values()):.2f} to {max(published.values()):.2f}"
    return SourceFigure(
        "OneFlow over Megatron, V100",
        "DLPerf, open rows",
        text,
        "OneFlow ahead in all",
        values,
        all(ratio > 1 for ratio in values.values()),
    )
