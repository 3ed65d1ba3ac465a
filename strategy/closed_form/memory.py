"""Memory of the fullest GPU: allocated by the program, reserved by the allocator, seen by the driver.

Parameters, gradients and optimiser states by ZeRO stage (Rajbhandari et al., 2020), activations per layer after
Korthikanti et al. (2022, arXiv:2205.05198, equations 1 to 4) times the micro-batches in flight, logits, and the working
set of what is recomputed. Reserved adds what the allocator cannot use again; the driver adds contexts and NCCL.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.closed_form.constants import Constant, Constants
from strategy.closed_form.frameworks import PROFILES
from strategy.closed_form.gemm import Floats
from strategy.closed_form.job import Jobs, gradient_bytes
from strategy.closed_form.work import JobWork
from strategy.hardware.devices import GIB

CONSTANTS = (
    Constant("memory.reserved", 1.25, 0.1, "activations that the allocator reserves over what is allocated"),
    Constant("memory.reserved.deepspeed", 1.05, 0.05, "the same of Megatron-DeepSpeed, whose buffers are contiguous"),
    Constant("memory.context", 1.2, 0.3, "GiB of contexts, NCCL and workspaces that only the driver sees"),
    Constant("memory.context.deepspeed", 7.0, 0.3, "the same of Megatron-DeepSpeed, whose buckets it contains"),
    Constant(
        "memory.optimiser.deepspeed", 16.0, 0.2, "bytes of optimiser and copies of gradients per parameter, DeepSpeed"
    ),
    Constant("memory.working", 1.0, 0.3, "temporaries of a layer over what it keeps for its backward pass"),
    Constant("memory.logits", 10.0, 0.2, "bytes per logit: in half, in single, their gradient, temporaries"),
    Constant("memory.logits.planned", 3.0, 0.3, "the same where memory is planned before the run, OneFlow"),
    Constant(
        "memory.pipeline.planned", 3.0, 0.4, "blocks of OneFlow's registers between stages over micro-batches in flight"
    ),
    Constant("memory.selective", 0.35, 0.2, "share of a layer that selective recompute of torchtitan keeps"),
)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one GPU, by what they are for; `reserved` and `driver` contain `allocated`."""

    parameters: Floats
    gradients: Floats
    optimiser: Floats
    activations: Floats
    working: Floats
    logits: Floats
    allocated: Floats
    reserved: Floats
    driver: Floats


def footprint(jobs: Jobs, work: JobWork, constants: Constants) -> Footprint:
    """What the fullest GPU of each job holds, in bytes."""
    j, c = jobs, constants
    profiles = [PROFILES[job.framework] for job in jobs.jobs]
    even = np.array([profile.even for profile in profiles])
    per_stage = np.where(even, 1.0, np.ceil(j.layers / j.pp) * j.pp / np.maximum(j.layers, 1))
    edges = np.where(j.pp > 1, 1.0, np.where(j.tied > 0, 1.0, 2.0))
    held = (work.parameters + work.expert_parameters) * per_stage + work.edge_parameters * edges
    replicas = j.dp * j.cp
    width = np.where(j.bits == 32, 4.0, 2.0)
    gradient = gradient_bytes(jobs)
    deepspeed = np.array([profile.deepspeed for profile in profiles])
    master = np.where(j.bits == 32, 8.0, np.where(deepspeed, c["memory.optimiser.deepspeed"], 12.0))
    layer = (work.parameters + work.expert_parameters) * j.pp / np.maximum(j.layers, 1)
    experts = work.expert_parameters * per_stage
    of_experts = np.maximum(replicas * j.tp / j.ep, 1)
    spread = (held - experts) / replicas + experts / of_experts
    parameters = width * np.where(j.zero >= 3, spread + 2 * layer, held)
    gradients = gradient * np.where(j.zero >= 2, spread + layer, held)
    optimiser = master * np.where((j.zero >= 1) | even, spread, held)

    planned = np.array([profile.name == "oneflow" for profile in profiles])
    per_logit = np.where(planned, c["memory.logits.planned"], c["memory.logits"])
    again = np.array([job.recompute for job in jobs.jobs])
    rows = work.tokens * width / 2
    along = np.where(j.sequence_parallel > 0, j.tp, 1.0)
    unfused = np.array([not job.flash for job in jobs.jobs]) & (again != "selective")
    feeds = j.ffn * (4 + 4 * j.gated) + j.top_k * j.expert_ffn * (4 + 4 * j.gated) + 4 * j.shared_ffn
    per_layer = rows * (
        10 * j.hidden / along
        + (2 * j.heads * (j.head_qk + j.head_v) + 2 * j.kv_heads * (j.head_qk + j.head_v) + feeds) / j.tp
        + 5 * j.heads / j.tp * j.seq / j.cp * unfused
    )
    by_op = np.array([job.recompute == "selective" and job.framework == "torchtitan" for job in jobs.jobs])
    boundary = 2 * rows * j.hidden / np.where(j.sequence_parallel > 0, j.tp, 1.0)
    kept = np.where(again == "full", boundary, np.where(by_op, c["memory.selective"], 1.0) * per_layer)
    in_flight = np.minimum(work.micro_batches, j.pp * (1 + np.where(j.virtual > 1, (j.pp - 1) / (j.pp * j.virtual), 0)))
    in_flight = in_flight * np.where(planned & (j.pp > 1), c["memory.pipeline.planned"], 1.0)
    images = np.where(j.conv_flop > 0, 2.2 * j.micro_batch * j.conv_elements * width, 0.0)
    activations = kept * np.ceil(j.layers / j.pp) * in_flight + images
    working = c["memory.working"] * per_layer
    logits = np.where(j.pp > 1, 0.0, 1.0) * per_logit / 4 * work.logits_bytes
    on_last = per_logit / 4 * work.logits_bytes + kept * np.ceil(j.layers / j.pp)
    activations = np.where(j.pp > 1, np.maximum(activations, on_last), activations)
    allocated = parameters + gradients + optimiser + activations + working + logits
    spare = np.where(planned, 1.0, np.where(deepspeed, c["memory.reserved.deepspeed"], c["memory.reserved"]))
    reserved = parameters + gradients + optimiser + spare * (activations + working + logits)
    return Footprint(
        parameters, gradients, optimiser, activations, working, logits, allocated, reserved,
        reserved + np.where(deepspeed, c["memory.context.deepspeed"], c["memory.context"]) * GIB,
    )  # fmt: skip


_MEASURED = ("megatron-deepspeed", "oneflow", "oneflow-noclip", "torchtitan")
"""Frameworks whose reserved memory the constants rest on; of the others only what must be there is believed."""
_MARGIN = 0.95
"""Share of the memory beyond which there is alarm: not all of a data sheet's GiB can be used, and errors are 4 %."""


def overflows(jobs: Jobs, held: Footprint) -> npt.NDArray[np.bool_]:
    """Whether a GPU's memory is exceeded; a miss costs a job, a false alarm a second look."""
    measured = np.array([job.framework in _MEASURED for job in jobs.jobs])
    states = held.parameters + held.gradients + held.optimiser
    return np.where(measured, held.driver > _MARGIN * jobs.memory_bytes, states > jobs.memory_bytes)
