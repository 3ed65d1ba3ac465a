"""Price: seconds of a step from the work that it consists of, with the fitted constants.

    stage of a micro-batch = max(kernels on the device + exposed collectives, the host that issues them)
    step = pipeline of stages + exposed gradient exchange + optimiser + what a step costs beside

Each term is one function below; which share of a collective is exposed is the framework's (`frameworks`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.estimate import collectives
from strategy.estimate.collectives import Group
from strategy.estimate.constants import Constant, Constants
from strategy.estimate.devices import FABRICS
from strategy.estimate.frameworks import PROFILES, VISION
from strategy.estimate.gemm import Floats, Product
from strategy.estimate.job import Jobs
from strategy.estimate.work import Pass, Work, measure

_RATES = (
    ("volta", "single"), ("volta", "half"), ("ampere", "half"), ("hopper", "half"), ("hopper", "eight"),
    ("blackwell", "half"), ("blackwell", "eight"), ("blackwell", "mx8"), ("blackwell", "four"),
)  # fmt: skip
Mask = npt.NDArray[np.bool_]
_RATE_PRIORS = {"single": 0.9, "half": 0.75, "eight": 0.6, "mx8": 0.6, "four": 0.45}
CONSTANTS = (
    *(Constant(f"rate.{generation}.{precision}", _RATE_PRIORS[precision], 0.2,
               f"share of the dense peak that large products reach, {generation}, {precision}")
      for generation, precision in _RATES),
    Constant("rate.row8", 0.7, 0.3, "rate of row-wise scaled 8-bit products over tensor-wise ones"),
    Constant("rate.capped", 0.85, 0.15, "clock of an H100 held to 500 W over one of 700 W"),
    Constant("gemm.quantisation", 0.7, 0.3, "share of idle tiles and waves that is really lost"),
    Constant("gemm.shallow", 100.0, 0.7, "depth of a product whose prologue doubles its time"),
    Constant("gemm.odd", 0.2, 1.0, "more time of a product with a dim that is no multiple of 64"),
    Constant("gemm.ragged", 1.0, 1.0, "more time of a product with a dim that is no multiple of 8"),
    Constant("gemm.batched", 0.6, 0.3, "rate of unfused attention's products over that of weights"),
    Constant("gemm.grouped", 0.7, 0.3, "rate of experts' products over that of weights"),
    *(Constant(f"flash.{generation}", 0.4, 0.3, f"share of the dense half peak in fused attention, {generation}")
      for generation in ("ampere", "hopper", "blackwell")),
    Constant("bytes.rate", 0.75, 0.15, "share of the memory bandwidth that memory-bound kernels reach"),
    Constant("bytes.scores", 4.0, 0.4, "times that unfused attention moves its scores, forward"),
    Constant("bytes.scanned", 100.0, 0.5, "times that a state-space scan moves its input, forward"),
    Constant("bytes.routed", 8.0, 0.5, "times that routing to experts moves what it routes, forward"),
    Constant("bytes.logits", 6.0, 0.5, "times that the loss moves the logits, forward and backward"),
    Constant("bytes.optimiser", 30.0, 0.3, "bytes that the optimiser moves per parameter"),
    Constant("conv.single", 0.8, 0.3, "share of the single peak in convolutions"),
    Constant("conv.half", 0.35, 0.4, "share of the half peak in convolutions"),
    Constant("conv.moved", 6.0, 0.3, "times that an image net moves its convolutions' outputs, forward"),
    Constant("kernel.floor", 2e-6, 0.5, "device seconds of a kernel beside its work"),
    *(Constant(f"fabric.{name}", prior, 0.15, f"share of the NICs' data sheet that groups over nodes reach, {name}")
      for name, prior in zip(FABRICS, (0.9, 0.4, 0.6), strict=True)),
    Constant("pp.exposed", 1.0, 0.4, "share of the messages between stages that is not hidden"),
    Constant("ep.exposed", 0.8, 0.4, "share of the exchange between experts that is not hidden"),
    Constant("ep.skew", 1.1, 0.1, "tokens of the busiest expert's GPU over the mean"),
    Constant("host.sharpness", 3.0, 0.4, "exponent of the maximum of host and device: 1 is one after the other"),
    Constant("gather.sharpness", 3.0, 0.4, "the same of compute and the gathering of sharded parameters"),
    Constant("recompute.node", 0.9, 1.5, "share of a stated full recompute that small runs of Megatron-DeepSpeed do"),
    Constant("host.routed", 6e-5, 0.5, "host seconds per kernel of a mixture of experts without dropped tokens"),
    Constant("release.yearly", 1.1, 0.1, "time of Megatron-Bridge a year before its newest release over today's"),
    Constant("release.routed", 1.5, 0.4, "the same of host seconds of a mixture of experts"),
    Constant("jitter.vision", 0.02, 0.7, "wait of replicas for each other per doubling, share of a step, DDP"),
    Constant("jitter.language", 0.01, 0.7, "the same of systems for language models"),
    Constant("loader.gpu", 820.0, 0.2, "images/s that a loader on the host feeds to one GPU, where it is slow"),
    Constant("loader.node", 2800.0, 0.2, "images/s that MXNet's loader feeds to one node"),
    Constant("sync.paddle", 4e-10, 0.7, "PaddlePaddle's seconds per byte of gradients beside the links' time"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Exchange:
    """Seconds of each exchange with every link at its data sheet's rate, and whether it leaves the node.

    `tp` is one collective of a boundary tensor, `dp` one all-reduce of 2-byte gradients, `gather` one all-gather of
    2-byte parameters over the replicas, `pp` one message between stages, `ep` one dispatch to experts, `cp` one
    rotation of keys and values.
    """

    tp: Floats
    dp: Floats
    gather: Floats
    pp: Floats
    ep: Floats
    cp: Floats
    tp_far: Mask
    dp_far: Mask
    pp_far: Mask
    ep_far: Mask


def exchanges(jobs: Jobs, work: Work, constants: Constants) -> Exchange:
    """Price the collectives; `constants` are those of `collectives`."""
    j = jobs
    family = np.array([collectives.family_of(job.device) for job in jobs.jobs], dtype=np.intp)
    switched = np.array([job.device.generation != "volta" or job.device.domain > 8 for job in jobs.jobs])
    domain = np.where(j.domain > 8, np.where(j.domain > 16, j.domain, 16.0), j.gpus_per_node)

    def group(ranks: Floats, stride: Floats) -> Group:
        local = np.clip(np.floor(domain / stride), 1, ranks)
        return Group(ranks, local, j.link_bytes_per_s, j.nic_bytes_per_s, family, switched, np.zeros(len(jobs), bool))

    tensor = group(j.tp, np.ones(len(jobs)))
    data = group(j.dp * j.cp, j.tp)
    stages = group(j.pp, j.tp * j.cp * j.dp)
    expert = group(j.ep, np.ones(len(jobs)))
    scattered = np.array([PROFILES[job.framework].scattered for job in jobs.jobs])
    boundary = work.activation / np.where(scattered | (j.sequence_parallel > 0), j.tp, 1.0)
    keys = work.activation * 2 * j.kv_heads * j.head_qk / np.maximum(j.hidden, 1) / j.tp
    own = work.parameters + work.edge_parameters / j.pp + work.expert_parameters / np.maximum(j.dp * j.cp / j.ep, 1)
    return Exchange(
        tp=collectives.all_reduce(work.activation, tensor, constants),
        dp=collectives.all_reduce(2 * own, data, constants),
        gather=collectives.reduce_scatter(2 * own, data, constants),
        pp=collectives.send(boundary, stages, constants),
        ep=collectives.all_to_all(work.dispatched / np.maximum(j.moe_layers, 1), expert, constants) * j.moe_layers,
        cp=collectives.send(keys, group(j.cp, j.tp), constants) * (j.cp - 1),
        tp_far=_far(tensor),
        dp_far=_far(data),
        pp_far=_far(stages),
        ep_far=_far(expert),
    )


def _far(group: Group) -> Mask:
    return np.asarray(group.nodes > 1, dtype=bool)


class Pricing:
    """Jobs, their work and exchanges, ready to be priced again and again as a fit moves its constants."""

    def __init__(self, jobs: Jobs, links: Constants) -> None:
        self.jobs = jobs
        self.work = measure(jobs)
        self.exchange = exchanges(jobs, self.work, links)
        generations = ("volta", "ampere", "hopper", "blackwell")
        plain = [job.device.generation.removesuffix("500") for job in jobs.jobs]
        self._generation = np.array([generations.index(name) for name in plain], dtype=np.intp)
        self._capped = np.array([job.device.generation.endswith("500") for job in jobs.jobs])
        self._row8 = np.array([job.precision == "row8" for job in jobs.jobs])
        self._rates = [_rate_name(name, job.precision) for name, job in zip(plain, jobs.jobs, strict=True)]
        self._half_rates = [
            _rate_name(name, "single" if job.bits == 32 else "half") for name, job in zip(plain, jobs.jobs, strict=True)
        ]
        self._profiles = [PROFILES[job.framework] for job in jobs.jobs]
        self._fabric = jobs.index("fabric", FABRICS)
        self._images = jobs.conv_flop > 0
        self._even = np.array([profile.even for profile in self._profiles])
        self._gradient = np.array([profile.gradient_bytes for profile in self._profiles])
        self._bridge = np.array([job.framework == "megatron-bridge" for job in jobs.jobs])
        self._sharded = jobs.zero >= 3
        states = 18 * (self.work.parameters + self.work.edge_parameters)
        self._doubtful = np.array(
            [job.framework == "megatron-deepspeed" and job.gpus <= job.gpus_per_node for job in jobs.jobs]
        ) & (states < 0.5 * jobs.memory_bytes)
        frameworks = [job.framework for job in jobs.jobs]
        self._vision = np.array([name in VISION for name in frameworks])
        self._fed = np.array([name in ("mxnet", "pytorch-ngc") for name in frameworks]) & self._images
        self._by_node = np.array([name == "mxnet" for name in frameworks])
        self._slow_sync = np.array([name.startswith("paddle") for name in frameworks])
        self._names = {
            part: [getattr(profile, part) for profile in self._profiles]
            for part in ("slack", "host", "moved", "tp", "dp", "step")
        }
        self._places = {part: _places(names) for part, names in self._names.items()}
        self._places["rate"], self._places["half"] = _places(self._rates), _places(self._half_rates)

    def _each(self, part: str, constants: Constants) -> Floats:
        names, places = self._places[part]
        return np.asarray(np.array([constants.get(name, 1.0) for name in names])[places], dtype=float)

    def seconds(self, constants: Constants) -> Floats:
        """Seconds of one step of every job."""
        j, work, moves = self.jobs, self.work, self.exchange
        c = constants
        per_stage = np.where(self._even, j.layers / j.pp, np.ceil(j.layers / j.pp)) / j.layers
        forward, backward = self._device(work.forward, c), self._device(work.backward, c)
        again = work.recompute * np.where(self._doubtful, np.minimum(c["recompute.node"], 1.0), 1.0)
        kernels = work.forward.kernels * (1 + again) + work.backward.kernels
        fabric = np.array([c[f"fabric.{name}"] for name in FABRICS])[self._fabric]
        slack = self._each("slack", c)
        compute = slack * (forward * (1 + again) + backward) + c["kernel.floor"] * kernels

        def reach(far: Mask) -> Floats:
            return np.where(far, 1 / fabric, 1.0)

        tensor = moves.tp * reach(moves.tp_far) * work.collectives * (2 + again)
        expert = moves.ep * reach(moves.ep_far) * 2 * (2 + again) * c["ep.skew"]
        context = moves.cp * j.attention_layers * 3 * 0.3
        device = compute + self._each("tp", c) * tensor + c["ep.exposed"] * expert + context
        issued = kernels + np.where(j.tp > 1, 3, 0) * work.collectives * (2 + again)
        routed = work.routed_kernels * (2.9 + again)
        host = self._each("host", c) * (issued - routed) + c["host.routed"] * c["release.routed"] ** j.release * routed
        body = _soft_maximum(device, host, c["host.sharpness"]) * per_stage

        head_rate = self._each("half", c) * j.peak_half * np.where(self._capped, c["rate.capped"], 1.0)
        bandwidth = j.memory_bytes_per_s * c["bytes.rate"]
        logits = slack * (self._product(work.logits, c) / head_rate + c["bytes.logits"] * work.logits_bytes / bandwidth)
        message = 2 * j.virtual * c["pp.exposed"] * moves.pp * reach(moves.pp_far)
        last = np.where(self._even, body + logits / j.pp, body + logits)
        longest = np.maximum(body, last) + np.where(j.pp > 1, message, 0.0)
        rest = (j.pp - 1) * (body + np.where(j.pp > 1, message, 0.0) + np.where(self._even, logits / j.pp, 0.0))
        pipeline = work.micro_batches * longest + rest / j.virtual

        self_made = np.where(self._slow_sync & (j.dp > 1), c["sync.paddle"], 0.0)
        reduced = self_made * 4 * (work.parameters + work.edge_parameters) + moves.dp * reach(
            moves.dp_far
        ) * self._gradient / 2 * self._each("dp", c)
        gathered = moves.gather * reach(moves.dp_far) * self._each("dp", c) * 3 * work.micro_batches
        compute_and_gather = _soft_maximum(pipeline, gathered, c["gather.sharpness"])
        pipeline = np.where(self._sharded, compute_and_gather, pipeline + reduced)
        own = work.parameters + work.edge_parameters / j.pp * np.where(j.tied > 0, 1, 2) + work.expert_parameters
        shard = np.where(j.zero >= 1, j.dp * j.cp, np.where(self._even, j.dp * j.cp, 1.0))
        update = c["bytes.optimiser"] * own / shard / bandwidth
        aged = np.where(self._bridge, c["release.yearly"] ** j.release, 1.0)
        wait = np.where(self._vision, c["jitter.vision"], c["jitter.language"]) * np.log2(np.maximum(j.dp, 1))
        step = aged * (1 + wait) * (pipeline + update) + self._each("step", c)
        return np.where(self._fed, _soft_maximum(step, self._loading(c), 6.0), step)

    def _loading(self, c: Constants) -> Floats:
        """Seconds in which loaders that run on the host decode a step's images."""
        j = self.jobs
        per_gpu = j.micro_batch / c["loader.gpu"]
        per_node = j.micro_batch * np.minimum(j.gpus, j.gpus_per_node) / c["loader.node"]
        return np.where(self._by_node, np.maximum(per_gpu, per_node), per_gpu)

    def _product(self, product: Product, c: Constants) -> Floats:
        quantised = product.ideal + c["gemm.quantisation"] * (product.quantised - product.ideal)
        return (
            quantised + c["gemm.shallow"] * product.shallow
            + c["gemm.odd"] * product.odd + c["gemm.ragged"] * product.ragged
        )  # fmt: skip

    def _device(self, part: Pass, c: Constants) -> Floats:
        """Seconds of one pass's kernels, without what launching them takes."""
        j = self.jobs
        clock = np.where(self._capped, c["rate.capped"], 1.0)
        rate = self._each("rate", c) * j.peak * clock * np.where(self._row8, c["rate.row8"], 1.0)
        half = self._each("half", c) * j.peak_half * clock
        flash = np.array([c[f"flash.{name}"] for name in ("ampere", "ampere", "hopper", "blackwell")])[self._generation]
        bandwidth = j.memory_bytes_per_s * c["bytes.rate"]
        conv = np.where(j.bits == 32, c["conv.single"], c["conv.half"]) * j.peak_half
        moved = (
            self._each("moved", c) * part.moved + c["bytes.scores"] * part.scores + c["bytes.scanned"] * part.scanned
            + c["bytes.routed"] * part.routed + c["conv.moved"] * part.images
        )  # fmt: skip
        return (
            self._product(part.products, c) / rate
            + c["ep.skew"] * self._product(part.grouped, c) / (rate * c["gemm.grouped"])
            + self._product(part.batched, c) / (half * c["gemm.batched"])
            + part.fused_flop / (flash * j.peak_half * clock)
            + part.convolved / conv
            + moved / bandwidth
        )


def _places(names: list[str]) -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.intp]]]:
    known = sorted(set(names))
    return known, np.array([known.index(name) for name in names], dtype=np.intp)


def _rate_name(generation: str, precision: str) -> str:
    """The constant of a precision on a generation; what the generation lacks runs as its half."""
    wanted = {"row8": "eight", "mx8": "mx8" if generation == "blackwell" else "eight"}.get(precision, precision)
    return f"rate.{generation}.{wanted}" if (generation, wanted) in _RATES else f"rate.{generation}.half"


def _soft_maximum(a: Floats, b: Floats, sharpness: float) -> Floats:
    top = np.maximum(np.maximum(a, b), 1e-12)
    return top * ((a / top) ** sharpness + (b / top) ** sharpness) ** (1 / sharpness)
