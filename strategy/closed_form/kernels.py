"""Kernels: device seconds of a pass from its products, attention and bytes, with the fitted rates.

Products run at a share of the tensor cores' peak that depends on generation and precision, less what their shape loses
(`gemm`); everything else at a share of the memory's bandwidth, by the times that it moves its data.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strategy.closed_form.constants import Constant, Constants
from strategy.closed_form.frameworks import PROFILES
from strategy.closed_form.gemm import EffectiveFlops, Floats
from strategy.closed_form.job import Jobs
from strategy.closed_form.work import JobWork, Pass
from strategy.hardware.devices import Generation, Maker

_RATES: tuple[tuple[Generation | Maker, str], ...] = (
    (Generation.VOLTA, "single"), (Generation.VOLTA, "half"), (Generation.AMPERE, "half"), (Generation.HOPPER, "half"),
    (Generation.HOPPER, "eight"), (Generation.BLACKWELL, "half"), (Generation.BLACKWELL, "eight"),
    (Generation.BLACKWELL, "mx8"), (Generation.BLACKWELL, "four"), (Maker.AMD, "half"),
    (Maker.GOOGLE, "half"), (Maker.GOOGLE, "eight"),
)  # fmt: skip
_RATE_PRIORS = {"single": 0.9, "half": 0.75, "eight": 0.6, "mx8": 0.6, "four": 0.45}
FLASH = {generation: generation for generation in Generation} | {Generation.VOLTA: Generation.AMPERE}
"""Whose fused attention a generation's is like: no run on Volta has any."""
_OTHERS = {Maker.AMD: Maker.AMD, Maker.GOOGLE: Maker.GOOGLE, Maker.INTEL: Maker.AMD}
"""Whose rates the devices of other makers than NVIDIA take: of Intel's there are no runs, of AMD's none in half."""
CONSTANTS = (
    *(Constant(f"rate.{generation}.{precision}", _RATE_PRIORS[precision], 0.2,
               f"share of the dense peak that large products reach, {generation}, {precision}")
      for generation, precision in _RATES),
    Constant("rate.row8", 0.7, 0.3, "rate of row-wise scaled 8-bit products over tensor-wise ones"),
    Constant("rate.capped", 0.85, 0.15, "clock of an H100 held to 500 W over one of 700 W"),
    Constant("gemm.quantisation", 0.7, 0.3, "share of idle tiles and waves that is really lost"),
    Constant("gemm.shallow", 100.0, 0.7, "depth of a product whose prologue doubles its time"),
    Constant("gemm.odd", 0.2, 1.0, "more time of a product with a dim that is no multiple of 64"),
    Constant("gemm.ragged", 4.0, 0.7, "more time of a product with a dim that is odd"),
    Constant("gemm.batched", 0.6, 0.3, "rate of unfused attention's products over that of weights"),
    Constant("gemm.grouped", 0.75, 0.1, "rate of experts' products over that of weights"),
    Constant("gemm.grouped.google", 0.5, 0.4, "the same on Google's devices, over that of halves"),
    *(Constant(f"flash.{generation}", 0.4, 0.3, f"share of the dense half peak in fused attention, {generation}")
      for generation in ("ampere", "hopper", "blackwell", "amd", "google")),
    Constant("flash.ordered", 1.5, 0.3, "time of fused attention's backward pass in deterministic runs over others"),
    Constant("bytes.rate", 0.75, 0.15, "share of the memory bandwidth that memory-bound kernels reach"),
    Constant("bytes.scores", 4.0, 0.4, "times that unfused attention moves its scores, forward"),
    Constant("bytes.cast", 6.0, 0.5, "bytes moved per element that is cast to 8 or 4 bits for a product"),
    Constant("bytes.scanned", 100.0, 0.5, "times that a state-space scan moves its input, forward"),
    Constant("bytes.routed", 8.0, 0.5, "times that routing to experts moves what it routes, forward"),
    Constant("bytes.logits", 6.0, 0.5, "times that the loss moves the logits, forward and backward"),
    Constant("conv.single", 0.8, 0.3, "share of the single peak in convolutions"),
    Constant("conv.half", 0.35, 0.4, "share of the half peak in convolutions"),
    Constant("conv.moved", 6.0, 0.3, "times that an image net moves its convolutions' outputs, forward"),
)  # fmt: skip


class Lookup:
    """One named constant per job, looked up by place. A name that is no constant stands for 1."""

    def __init__(self, names: list[str]) -> None:
        self.names = sorted(set(names))
        places = {name: place for place, name in enumerate(self.names)}
        self.places: npt.NDArray[np.intp] = np.array([places[name] for name in names], dtype=np.intp)

    def of(self, constants: Constants) -> Floats:
        """The constants' values, one per job."""
        return np.asarray(np.array([constants.get(name, 1.0) for name in self.names])[self.places], dtype=float)


class KernelRates:
    """The devices of jobs, ready to price passes again and again as a fit moves its constants."""

    def __init__(self, jobs: Jobs) -> None:
        families = [_OTHERS.get(job.device.maker, job.device.generation) for job in jobs.jobs]
        profiles = [PROFILES[job.framework] for job in jobs.jobs]
        self.jobs = jobs
        self._capped = jobs.power_cap_w > 0
        self._by_row = jobs.where(precision="row8")
        self._rate = Lookup([_rate_name(name, job.precision) for name, job in zip(families, jobs.jobs, strict=True)])
        widths = ["single" if job.bits == 32 else "half" for job in jobs.jobs]
        self._half = Lookup([_rate_name(name, width) for name, width in zip(families, widths, strict=True)])
        self._flash = Lookup([f"flash.{_flash_like(name)}" for name in families])
        self._grouped = Lookup(["gemm.grouped.google" if name is Maker.GOOGLE else "gemm.grouped" for name in families])
        # Whatever the recipe, MaxText's grouped products gain next to nothing from narrow operands.
        self._wide_experts = np.array([name is Maker.GOOGLE for name in families])
        self._moved = Lookup([profile.moved for profile in profiles])
        casting = np.array([profile.casting for profile in profiles])
        self._wider = np.where(casting & (jobs.bits < 32), 2.0, 1.0)

    def bandwidth(self, c: Constants) -> Floats:
        """Bytes/s that memory-bound kernels reach."""
        return self.jobs.memory_bytes_per_s * c["bytes.rate"]

    def _clock(self, c: Constants) -> Floats:
        return np.where(self._capped, c["rate.capped"], 1.0)

    def _half_rate(self, c: Constants) -> Floats:
        return self._half.of(c) * self.jobs.peak_half * self._clock(c)

    def seconds(self, part: Pass, c: Constants) -> Floats:
        """Seconds of a pass's kernels, without what launching them takes."""
        j = self.jobs
        rate = self._rate.of(c) * j.peak * self._clock(c) * np.where(self._by_row, c["rate.row8"], 1.0)
        convolving = np.where(j.bits == 32, c["conv.single"], c["conv.half"]) * j.peak_half
        moved = (
            self._moved.of(c) * self._wider * part.moved
            + c["bytes.scores"] * part.scores
            + c["bytes.cast"] * part.cast
            + c["bytes.scanned"] * part.scanned
            + c["bytes.routed"] * part.routed
            + c["conv.moved"] * part.images
        )
        return np.asarray(
            full_rate_flop(part.products, c) / rate
            + c["ep.skew"]
            * full_rate_flop(part.grouped, c)
            / (np.where(self._wide_experts, self._half_rate(c), rate) * self._grouped.of(c))
            + full_rate_flop(part.batched, c) / (self._half_rate(c) * c["gemm.batched"])
            + (part.fused_flop + c["flash.ordered"] * part.ordered_flop)
            / (self._flash.of(c) * j.peak_half * self._clock(c))
            + part.convolved / convolving
            + moved / self.bandwidth(c),
            dtype=float,
        )

    def head(self, work: JobWork, c: Constants) -> Floats:
        """Seconds of the logits and the loss, forward and backward."""
        moved = c["bytes.logits"] * work.logits_bytes
        return full_rate_flop(work.logits, c) / self._half_rate(c) + moved / self.bandwidth(c)


def full_rate_flop(product: EffectiveFlops, c: Constants) -> Floats:
    """FLOPs of a product at the full rate, with what its shape loses."""
    quantised = product.ideal + c["gemm.quantisation"] * (product.quantised - product.ideal)
    lost = c["gemm.shallow"] * product.shallow + c["gemm.odd"] * product.odd + c["gemm.ragged"] * product.ragged
    return quantised + lost


def _rate_name(family: Generation | Maker, precision: str) -> str:
    """The constant of a precision on a generation; what the generation lacks runs as its half."""
    blocks = "mx8" if family is Generation.BLACKWELL else "eight"
    wanted = {"row8": "eight", "mx8": blocks}.get(precision, precision)
    return f"rate.{family}.{wanted}" if (family, wanted) in _RATES else f"rate.{family}.half"


def _flash_like(family: Generation | Maker) -> Generation | Maker:
    return family if isinstance(family, Maker) else FLASH[family]
