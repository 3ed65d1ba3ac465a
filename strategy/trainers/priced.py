"""Price of a read configuration: seconds of a step with an interval and by cause, memory by cause, utilisation.

The closed form prices it, as `sbplan predict` prices published runs. What its constants take for granted and a file
does not have is put right here: gradients that nothing overlaps are exposed in full, and what waits on the host moves
over its link, beside nothing (the closed form has no offloading).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from strategy.base.errors import InputError
from strategy.closed_form.calibration import FittedConstants
from strategy.closed_form.constants import Constants
from strategy.closed_form.estimate import estimate
from strategy.closed_form.frameworks import PROFILES
from strategy.closed_form.job import Job, Jobs
from strategy.closed_form.memory import fitting, footprint, overflows
from strategy.closed_form.price import Pricing
from strategy.closed_form.products import Floats
from strategy.closed_form.recompute import multiply_adds_per_token
from strategy.closed_form.work import measure
from strategy.cost.kernel_prices import sheet_of
from strategy.hardware.cluster import Cluster, Host
from strategy.hardware.devices import GIB, DeviceSheet
from strategy.trainers.trained import TrainedModel, job_of

_PASSES = 3
"""Forward, and backward by activations and by weights: FLOPs of a step over those of a forward pass."""
_CONTEXT = {False: "memory.context", True: "memory.context.deepspeed"}
SPARE = "kept by the allocator"
"""Part of the memory that is given back before memory runs out."""
_ADAM_MOVES = 2
"""Times that an update on the host reads or writes its state."""


@dataclass(frozen=True, slots=True)
class PricedMachine:
    """On what a configuration is priced: so many of a device, so many to a node."""

    device: DeviceSheet
    gpus: int
    gpus_per_node: int
    fabric: str = "infiniband"
    host: Host | None = None


@dataclass(frozen=True, slots=True)
class TrainerPrice:
    """What a configuration costs.

    Attributes:
        job: what was priced.
        step_time_s, lo_s, hi_s: of a step, with a 90 % interval.
        causes_s: part of a step -> seconds; they add up to the step.
        memory_bytes: part of the fullest GPU -> bytes of it; they add up to what the driver sees.
        limit_bytes: of a GPU.
        fits: whether that is enough.
        fit_probability: that it is, by how far predictions of memory were off; None where that is not known.
        mfu: FLOPs of the model over what the devices can do in the time, in the precision of its products.
        extrapolated: why no run that the constants rest on was like this one.
    """

    job: Job
    step_time_s: float
    lo_s: float
    hi_s: float
    causes_s: Mapping[str, float]
    memory_bytes: Mapping[str, int]
    limit_bytes: int
    fits: bool
    mfu: float
    extrapolated: tuple[str, ...]
    fit_probability: float | None = None

    @property
    def peak_memory_bytes(self) -> int:
        """Of the fullest GPU, as the driver sees it."""
        return sum(self.memory_bytes.values())

    @property
    def needed_memory_bytes(self) -> int:
        """Of that what the allocator cannot give back: where there is less, it fails."""
        return self.peak_memory_bytes - self.memory_bytes[SPARE]

    @property
    def margin_bytes(self) -> int:
        """What is left of the GPU when the allocator has given back all that it can; below zero, what is missing."""
        return self.limit_bytes - self.needed_memory_bytes

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of the global batch over the step and the GPUs."""
        return self.job.global_batch * self.job.seq / self.step_time_s / self.job.gpus


def machine_of_cluster(cluster: Cluster) -> PricedMachine:
    """A cluster of alike nodes as the closed form sees it.

    Raises:
        InputError: its nodes are of several types.
    """
    if cluster.groups:
        expected = "nodes of one type"
        raise InputError("the closed form prices clusters of alike nodes", where=cluster.name, expected=expected)
    fabric = cluster.fabric if cluster.fabric != "tcp" else "edr"
    sheet = replace(sheet_of(cluster.device), nic_bytes_per_s=cluster.inter.bytes_per_s)
    return PricedMachine(sheet, cluster.devices, cluster.devices_per_node, fabric, cluster.host)


def priced(read: TrainedModel, machine: PricedMachine, fitted: FittedConstants) -> TrainerPrice:
    """The price of a configuration on a machine.

    Raises:
        InputError: its degrees do not divide the GPUs, or its batch is no multiple of what the ranks take.
    """
    job = job_of(read, machine.device, machine.gpus, machine.gpus_per_node, machine.fabric)
    own = replace(fitted, constants=_constants(read, job, fitted.constants))
    found = estimate([job], own)
    held = found.footprint
    on_host, offload_s = _offloaded(read, job, machine, {
        name: float(getattr(held, name)[0]) for name in ("parameters", "gradients", "optimiser", "activations")
    })  # fmt: skip
    parts = {name: float(getattr(held, name)[0]) for name in
             ("parameters", "gradients", "optimiser", "activations", "working", "logits")}  # fmt: skip
    workspace = float(held.allocated[0]) - sum(parts.values())
    # The allocator keeps no more than there is: it gives back what it does not use before it fails.
    context = _context_bytes(job, own.constants)
    room = job.device.memory_bytes - float(held.allocated[0]) - context
    spare = min(max(room, 0.0), max(float(held.driver[0] - held.allocated[0]) - context, 0.0))
    parts |= {name: parts[name] - nbytes for name, nbytes in on_host.items()}
    memory = parts | {"workspace": workspace, SPARE: spare, "contexts": context}
    base = float(found.seconds[0])
    total = base + offload_s
    stretch = total / base
    causes = _causes(job, own.constants, base) | ({"host link": offload_s} if offload_s else {})
    freed = sum(on_host.values())
    fits = room + freed >= 0 and (freed > 0 or not bool(found.out_of_memory[0]))
    needed = sum(memory.values()) - spare
    errors, spares = fitted.memory, job.device.memory_bytes / max(needed, 1.0)
    flop = _PASSES * 2 * _forward_multiply_adds(job) * job.global_batch * job.seq
    return TrainerPrice(
        job,
        total,
        float(found.low[0]) * stretch,
        float(found.high[0]) * stretch,
        causes,
        {name: round(nbytes) for name, nbytes in memory.items()},
        job.device.memory_bytes,
        fits,
        flop / (total * job.gpus * job.device.peak(job.bits)),
        (*found.extrapolated[0], *(("offloading",) if read.offload else ())),
        None if errors is None else errors.probability(job.framework, spares),
    )


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """What configurations hold of a GPU.

    Attributes:
        needed_bytes: of each, see `TrainerPrice`; (configurations,).
        fits: whether these are there.
        frameworks: by whose constants.
    """

    needed_bytes: Floats
    fits: npt.NDArray[np.bool_]
    frameworks: tuple[str, ...]


def held_memory(reads: Sequence[TrainedModel], machine: PricedMachine, fitted: FittedConstants) -> HeldMemory:
    """What configurations of one trainer hold, as `priced` says it of each; nothing of them is on the host.

    Raises:
        InputError: the degrees of one do not divide the GPUs, or its batch is no multiple of what the ranks take.
    """
    jobs = Jobs.of([job_of(one, machine.device, machine.gpus, machine.gpus_per_node, machine.fabric) for one in reads])
    held = fitting(jobs, footprint(jobs, measure(jobs), fitted.constants))
    needed = held.allocated + np.array([_context_bytes(job, fitted.constants) for job in jobs.jobs])
    fits = (needed <= jobs.memory_bytes) & ~overflows(jobs, held)
    return HeldMemory(needed, fits, tuple(job.framework for job in jobs.jobs))


def _context_bytes(job: Job, constants: Constants) -> float:
    return constants[_CONTEXT[PROFILES[job.framework].deepspeed]] * GIB


def _constants(read: TrainedModel, job: Job, constants: Constants) -> Constants:
    """The constants, with gradients in plain sight where nothing overlaps them."""
    name = PROFILES[job.framework].dp
    if "gradients" not in read.exposed or constants.get(name, 1.0) >= 1:
        return constants
    return {**constants, name: 1.0}


def _offloaded(
    read: TrainedModel, job: Job, machine: PricedMachine, held: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """Bytes of a GPU that wait on the host, by part, and the seconds in which they move, hidden by nothing."""
    away: dict[str, float] = {}
    moved = updated = 0.0
    if "optimizer" in read.offload:
        away["optimiser"] = held["optimiser"]
        moved += held["gradients"] + held["optimiser"] / 6
        updated = _ADAM_MOVES * held["optimiser"]
    if "parameters" in read.offload:
        away["parameters"] = held["parameters"]
        steps = job.global_batch / (job.dp * job.micro_batch)
        moved += _PASSES * steps * held["parameters"]
    if not away or machine.host is None:
        return {}, 0.0
    return away, moved / machine.host.link_bytes_per_s + updated / machine.host.memory_bytes_per_s


def _causes(job: Job, constants: Constants, seconds: float) -> dict[str, float]:
    """Parts of a step; what is gathered of shared-out parameters is the rest, beside what is computed."""
    causes = Pricing(Jobs.of([job]), constants).causes(constants)
    found: dict[str, float] = {}
    for part in (causes.compute, causes.exposed, causes.bubble, causes.other):
        found |= {_CAUSES[name]: float(np.broadcast_to(value, (1,))[0]) for name, value in part.items()}
    if job.zero >= 3:
        del found["gradients exchanged"]
    found["parameters gathered" if job.zero >= 3 else "the rest"] = seconds - sum(found.values())
    return {name: value for name, value in found.items() if abs(value) > 1e-9 * seconds}


_CAUSES = {
    "blocks": "layers computed", "head": "head computed", "gradients": "gradients added up", "update": "update",
    "tensor": "tensor parallel exchanged", "others": "experts and contexts exchanged", "messages": "stages' messages",
    "reduced": "gradients exchanged", "replicas": "waits of replicas", "fill and drain": "bubble",
    "host": "waits for the host", "beside": "once per step",
}  # fmt: skip


def _forward_multiply_adds(job: Job) -> float:
    """Multiply-adds of a forward pass per token, the head's included; each token counts the experts that it goes to."""
    # Of attention what a causal mask leaves counts, whether or not a kernel skips the rest.
    layers = sum(float(values[0]) for values in multiply_adds_per_token(Jobs.of([replace(job, flash=True)])).values())
    shape = job.shape
    return layers + shape.hidden * shape.vocab * shape.logit_share * (1 + shape.mtp_layers)
