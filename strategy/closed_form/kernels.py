"""Kernels: device seconds of a pass from its products, attention and bytes.

Products and fused attention take what microbenchmarks of their shapes say (`strategy.kernels`), times what they take
longer in steps than by themselves: there clocks sink under the power of hours of work, and caches are cold. Everything
else runs at a share of the memory's bandwidth, by the times that it moves its data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.closed_form.constants import Constant, Constants
from strategy.closed_form.frameworks import PROFILES
from strategy.closed_form.job import Jobs
from strategy.closed_form.products import Floats, ProductSeconds
from strategy.closed_form.work import JobWork, Pass
from strategy.hardware.devices import DeviceSheet, Generation, Maker

_RATES: tuple[tuple[Generation | Maker, str], ...] = (
    (Generation.VOLTA, "single"), (Generation.VOLTA, "half"), (Generation.AMPERE, "half"), (Generation.HOPPER, "half"),
    (Generation.HOPPER, "eight"), (Generation.BLACKWELL, "half"), (Generation.BLACKWELL, "eight"),
    (Generation.BLACKWELL, "mx8"), (Generation.BLACKWELL, "four"), (Maker.AMD, "half"),
    (Maker.GOOGLE, "half"), (Maker.GOOGLE, "eight"),
)  # fmt: skip
_LONGER = {"single": 1.0, "half": 1.15, "eight": 1.2, "mx8": 1.2, "four": 1.3}
_FLASH = {generation: generation for generation in Generation} | {Generation.VOLTA: Generation.AMPERE}
"""Whose fused attention a generation's is like: no run on Volta has any."""
_OTHERS = {Maker.AMD: Maker.AMD, Maker.GOOGLE: Maker.GOOGLE, Maker.INTEL: Maker.AMD}
"""Whose rates the devices of other makers than NVIDIA take: of Intel's there are no runs, of AMD's none in half."""
CONSTANTS = (
    *(Constant(f"products.{generation}.{precision}", _LONGER[precision], 0.2,
               f"time of products in steps over that of kernels by themselves, {generation}, {precision}")
      for generation, precision in _RATES),
    Constant("products.row8", 1.4, 0.3, "time of row-wise scaled 8-bit products over tensor-wise ones"),
    Constant("rate.power", 0.5, 0.3, "exponent of a board's power in the rate that its device sustains"),
    Constant("gemm.shape", 1.0, 0.5, "time that a product loses in steps by its shape over what it loses by itself"),
    Constant("gemm.odd", 0.2, 1.0, "more time of a product with a dim that is no multiple of 64"),
    Constant("gemm.ragged", 4.0, 0.7, "more time of a product with a dim that is odd"),
    Constant("gemm.batched", 1.3, 0.3, "time of unfused attention's products over that of weights"),
    Constant("gemm.grouped", 1.15, 0.15, "time of experts' products in steps over that of weights, both over kernels"),
    Constant("gemm.grouped.google", 2.0, 0.4, "the same on Google's devices, over that of halves"),
    *(Constant(f"flash.{generation}", 1.6, 0.4, f"time of fused attention in steps over that by itself, {generation}")
      for generation in ("ampere", "hopper", "blackwell", "amd", "google")),
    Constant("flash.backward", 3.0, 0.15, "time of fused attention's backward pass over its forward pass"),
    Constant("flash.ordered", 4.5, 0.3, "the same in deterministic runs"),
    Constant("bytes.rate", 0.85, 0.15, "share of the memory bandwidth that memory-bound kernels reach"),
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
        families = [_family(job.device) for job in jobs.jobs]
        profiles = [PROFILES[job.framework] for job in jobs.jobs]
        self.jobs = jobs
        self._by_row = jobs.where(precision="row8")
        own = [_longer_name(name, job.precision) for name, job in zip(families, jobs.jobs, strict=True)]
        self._products = Lookup(own)
        widths = ["single" if job.bits == 32 else "half" for job in jobs.jobs]
        self._half = Lookup([_longer_name(name, width) for name, width in zip(families, widths, strict=True)])
        self._flash = Lookup([f"flash.{_flash_like(name)}" for name in families])
        self._grouped = Lookup(["gemm.grouped.google" if name is Maker.GOOGLE else "gemm.grouped" for name in families])
        self._wide_experts = np.array([name is Maker.GOOGLE for name in families])
        self._moved = Lookup([profile.moved for profile in profiles])
        casting = np.array([profile.casting for profile in profiles])
        self._wider = np.where(casting & (jobs.bits < 32), 2.0, 1.0)

    def bandwidth(self, c: Constants) -> Floats:
        """Bytes/s that memory-bound kernels reach."""
        return self.jobs.memory_bytes_per_s * c["bytes.rate"]

    def _clock(self, c: Constants) -> Floats:
        return np.asarray(self.jobs.power ** c["rate.power"], dtype=float)

    def _half_longer(self, c: Constants) -> Floats:
        return self._half.of(c) / self._clock(c)

    def _longer(self, c: Constants) -> Floats:
        return self._products.of(c) / self._clock(c) * np.where(self._by_row, c["products.row8"], 1.0)

    def products(self, part: Pass, c: Constants) -> Floats:
        """Seconds of a pass's products with weights that are not experts'."""
        return self._longer(c) * in_steps(part.products, c)

    def seconds(self, part: Pass, c: Constants) -> Floats:
        """Seconds of a pass's kernels but for adapters', without what launching them takes."""
        j = self.jobs
        half = self._half_longer(c)
        longer = self._longer(c)
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
            self.products(part, c)
            + np.where(self._wide_experts, half, longer)
            * (c["ep.skew"] * self._grouped.of(c) * in_steps(part.grouped, c))
            + half * c["gemm.batched"] * in_steps(part.batched, c)
            + self._flash.of(c)
            / self._clock(c)
            * (part.fused + c["flash.backward"] * part.backward + c["flash.ordered"] * part.ordered)
            + part.convolved / convolving
            + moved / self.bandwidth(c),
            dtype=float,
        )

    def adapters(self, forward: Pass, backward: Pass, again: Floats, c: Constants) -> tuple[Floats, Floats]:
        """Seconds of adapters' memory-bound kernels, and of the weights' gradients that they spare."""
        moved = self._moved.of(c) * self._wider * (forward.adapted * (1 + again) + backward.adapted)
        return moved / self.bandwidth(c), self._longer(c) * in_steps(backward.spared, c)

    def head(self, work: JobWork, c: Constants) -> Floats:
        """Seconds of the logits and the loss, forward and backward."""
        moved = c["bytes.logits"] * work.logits_bytes
        return self._half_longer(c) * in_steps(work.logits, c) + moved / self.bandwidth(c)


def in_steps(product: ProductSeconds, c: Constants) -> Floats:
    """Seconds of products with what their shapes lose; not yet with what products take longer in steps."""
    lost = product.all - product.flat
    return product.flat + c["gemm.shape"] * lost + c["gemm.odd"] * product.odd + c["gemm.ragged"] * product.ragged


@dataclass(frozen=True, slots=True)
class InSteps:
    """What kernels of a device take longer in steps than by themselves.

    Attributes:
        products: of operands of some width.
        batched: of many of unfused attention at once.
        grouped: of experts.
        attention: fused, its forward pass.
        attention_backward: its backward pass, over the forward pass by itself.
        shape: what products lose by their shapes, over what they lose by themselves.
        odd: what products with columns or depth that are no multiple of 64 take more, as a part.
        ragged: those with an odd dim.
    """

    products: float
    batched: float
    grouped: float
    attention: float
    attention_backward: float
    shape: float
    odd: float
    ragged: float


def in_steps_on(sheet: DeviceSheet, width: str, c: Constants) -> InSteps:
    """What kernels take longer on one device, with operands of a width."""
    family = _family(sheet)
    clock = clock_of(sheet, c)
    products = c[_longer_name(family, width)] / clock
    attention = c[f"flash.{_flash_like(family)}"] / clock
    return InSteps(
        products,
        products * c["gemm.batched"],
        products * c["gemm.grouped"],
        attention,
        attention * c["flash.backward"],
        c["gemm.shape"],
        c["gemm.odd"],
        c["gemm.ragged"],
    )


def clock_of(sheet: DeviceSheet, c: Constants) -> float:
    """The rate that a device sustains over that of another with the same peaks, by the power of their boards."""
    return float(sheet.power ** c["rate.power"])


def _family(sheet: DeviceSheet) -> Generation | Maker:
    return _OTHERS.get(sheet.maker, sheet.generation)


def _longer_name(family: Generation | Maker, precision: str) -> str:
    """The constant of a precision on a generation; what the generation lacks runs as its half."""
    blocks = "mx8" if family is Generation.BLACKWELL else "eight"
    wanted = {"row8": "eight", "mx8": blocks}.get(precision, precision)
    return f"products.{family}.{wanted}" if (family, wanted) in _RATES else f"products.{family}.half"


def _flash_like(family: Generation | Maker) -> Generation | Maker:
    return family if isinstance(family, Maker) else _FLASH[family]
