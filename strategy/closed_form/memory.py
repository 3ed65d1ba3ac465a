"""Memory of a GPU by cause: allocated by the program, reserved by the allocator, seen by the driver.

Parameters, gradients and optimiser states by ZeRO stage (Rajbhandari et al., 2020); activations by op, after
Korthikanti et al. (2022, arXiv:2205.05198, equations 1 to 4), of as many chunks as the schedule has in flight
(Narayanan et al., 2021, section 2.2); logits; and the working set of what is recomputed. Reserved adds what the
allocator cannot use again; the driver adds contexts and NCCL. Counted of the first and of the last pipeline stage.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from strategy.closed_form.constants import Constant, Constants
from strategy.closed_form.frameworks import PROFILES
from strategy.closed_form.job import MODULES, Jobs, gradient_bytes
from strategy.closed_form.products import Floats
from strategy.closed_form.recompute import computed_again
from strategy.closed_form.work import JobWork
from strategy.hardware.devices import GIB, Generation

CONSTANTS = (
    Constant("memory.reserved", 1.25, 0.1, "activations that the allocator reserves over what is allocated"),
    Constant("memory.reserved.deepspeed", 1.05, 0.05, "the same of Megatron-DeepSpeed, whose buffers are contiguous"),
    Constant("memory.context", 1.2, 0.3, "GiB of contexts, NCCL and workspaces that only the driver sees"),
    Constant("memory.context.deepspeed", 9.0, 0.2, "the same of Megatron-DeepSpeed, whose buckets it contains"),
    Constant("memory.workspace", 0.1, 0.5, "GiB that products' and attention's workspaces and small tensors allocate"),
    Constant(
        "memory.optimiser.deepspeed", 15.0, 0.1, "bytes of optimiser and copies of gradients per parameter, DeepSpeed"
    ),
    Constant("memory.optimiser.internevo", 20.0, 0.3, "the same of InternEvo"),
    Constant("memory.optimiser.primus", 10.0, 0.3, "the same of Primus"),
    Constant("memory.working", 1.0, 0.3, "temporaries of a layer over what it keeps for its backward pass"),
    Constant("memory.logits", 10.0, 0.2, "bytes per logit: in half, in single, their gradient, temporaries"),
    Constant("memory.logits.eager", 14.0, 0.1, "the same of PyTorch's own loss in single precision, torchtitan"),
    Constant("memory.logits.fused", 6.0, 0.2, "the same of Megatron-Core and what is built on it"),
    Constant("memory.logits.planned", 3.0, 0.3, "the same where memory is planned before the run, OneFlow"),
    Constant(
        "memory.pipeline.planned", 3.0, 0.4, "blocks of OneFlow's registers between stages over micro-batches in flight"
    ),
    Constant("memory.selective", 0.33, 0.1, "share of a layer that selective recompute of torchtitan keeps"),
    Constant("memory.scan", 6.0, 0.4, "bytes that a state-space mixer keeps per element of its inner width"),
)
_ADAM = 12.0
"""Bytes per parameter of Adam in single precision: a copy of the weight and two moments."""


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
    """What the GPU that a job asks about holds, in bytes: of the last stage, or of the fullest."""
    layer = _per_layer(jobs, work, constants)
    first = _of_stage(jobs, work, constants, *layer, last=np.asarray(jobs.pp == 1))
    last = _of_stage(jobs, work, constants, *layer, last=np.ones(len(jobs), dtype=bool))
    chosen = (jobs.last_stage > 0) | (last.allocated >= first.allocated)
    parts = {part.name: np.where(chosen, getattr(last, part.name), getattr(first, part.name)) for part in fields(last)}
    return Footprint(**parts)


def _of_stage(
    jobs: Jobs, work: JobWork, c: Constants, per_layer: Floats, kept: Floats, *, last: npt.NDArray[np.bool_]
) -> Footprint:
    j = jobs
    profiles = [PROFILES[job.framework] for job in jobs.jobs]
    deepspeed = np.array([profile.deepspeed for profile in profiles])
    planned = np.array([profile.name == "oneflow" for profile in profiles])
    fused = np.array([profile.fused for profile in profiles])
    eager = np.array([profile.name == "torchtitan" for profile in profiles])

    held, experts, layer = _parameters(jobs, work, last)
    narrow = np.array([profile.narrow_weights for profile in profiles]) & (j.bits < 16) & ~_transposed(jobs)
    width = np.where(j.bits == 32, 4.0, np.where(narrow, 1.0, 2.0))
    trained = 1 - j.frozen
    gradient = gradient_bytes(jobs) * trained
    adam = np.array([c[profile.optimiser] if profile.optimiser else _ADAM for profile in profiles])
    master = (np.where(j.bits == 32, 8.0, adam) - 4 * (2 - j.moments)) * trained
    of_experts = np.maximum(j.dp * j.cp * j.tp / (j.ep * j.etp), 1)
    shared = (held - experts) / j.spread + experts / np.minimum(of_experts, j.spread)
    several = j.spread > 1  # among one rank nothing is shared out, and nothing gathered
    through = (j.zero >= 3) & (j.pp > 1) & several  # stages keep what they gathered until their last backward pass
    parameters = width * np.where((j.zero >= 3) & several, shared + np.where(through, held, 2 * layer), held)
    gradients = gradient * np.where((j.zero >= 2) & ~through & several, shared + layer, held)
    # Of one layer, gradients of weights are there as the products make them, beside what they are added to.
    made = work.parameters * j.pp / np.maximum(j.layers, 1)
    gradients = gradients + np.where(fused & (j.zero < 2), 2 * trained * made, 0.0)
    optimiser = master * np.where(j.zero >= 1, shared, held)

    flying = _layers_in_flight(jobs, work, last) * np.where(planned & (j.pp > 1), c["memory.pipeline.planned"], 1.0)
    images = np.where(j.conv_flop > 0, 2.2 * j.micro_batch * j.conv_elements * np.where(j.bits == 32, 4.0, 2.0), 0.0)
    activations = kept * flying + images
    per_logit = np.select(
        [planned, fused, eager],
        [c["memory.logits.planned"], c["memory.logits.fused"], c["memory.logits.eager"]],
        c["memory.logits"],
    )
    logits = np.where(last, per_logit / 4 * work.logits_bytes, 0.0)
    # What is computed again is there beside the logits' gradient where a framework lets go of it late.
    working = c["memory.working"] * per_layer
    working = np.where(fused, np.maximum(working - logits, 0.0), working)
    workspace = c["memory.workspace"] * GIB
    allocated = parameters + gradients + optimiser + activations + working + logits + workspace
    counted = np.array([bool(profile.optimiser) for profile in profiles])  # with what is reserved, in the constant
    spare = np.where(planned | counted, 1.0, c["memory.reserved"])
    spare = np.where(deepspeed, c["memory.reserved.deepspeed"], spare)
    reserved = parameters + gradients + optimiser + spare * (activations + working + logits) + workspace
    driver = reserved + np.where(deepspeed, c["memory.context.deepspeed"], c["memory.context"]) * GIB
    return Footprint(parameters, gradients, optimiser, activations, working, logits, allocated, reserved, driver)


def _parameters(jobs: Jobs, work: JobWork, last: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """Parameters of a stage, those of its experts, and those of one layer."""
    j = jobs
    even = np.array([PROFILES[job.framework].even for job in jobs.jobs])
    per_stage = np.where(even, 1.0, np.ceil(j.layers / j.pp) * j.pp / np.maximum(j.layers, 1))
    # Where the first layers are dense, the last stage has more than its share of the experts.
    blocks = (j.attention_layers == j.layers + j.mtp_layers) & (j.moe_layers > 0) & last & (j.pp > 1)
    here = np.minimum(j.moe_layers, j.layers / j.pp) * j.pp / np.maximum(j.moe_layers, 1)
    experts = work.expert_parameters * np.where(blocks, here, per_stage)
    edges = work.edge_parameters * np.where((j.pp == 1) & (j.tied == 0), 2.0, 1.0)
    layer = (work.parameters + work.expert_parameters) * j.pp / np.maximum(j.layers, 1)
    return work.parameters * per_stage + experts + edges, experts, layer


def _transposed(jobs: Jobs) -> npt.NDArray[np.bool_]:
    """Where 8-bit weights are there twice: blocks of them are scaled by row and column; Hopper multiplies rows."""
    return np.array([job.device.generation is Generation.HOPPER or job.precision == "mx8" for job in jobs.jobs])


def _per_layer(jobs: Jobs, work: JobWork, c: Constants) -> tuple[Floats, Floats]:
    """Bytes that one layer makes for its backward pass, and those of them that are kept until then."""
    j = jobs
    again = np.array([job.recompute for job in jobs.jobs])
    fused = np.array([PROFILES[job.framework].fused for job in jobs.jobs])
    rows = work.tokens * np.where(j.bits == 32, 2.0, 1.0)
    along = np.where(j.sequence_parallel > 0, j.tp, 1.0)
    layers = np.maximum(j.layers, 1)
    unfused = np.array([not job.flash for job in jobs.jobs])
    # What enters a product is kept for its weight's gradient; weights that stand still have none.
    # Narrow inputs of products are kept as narrow as they enter them.
    narrow = fused & (j.bits < 16) & (j.frozen == 0)
    of_gate = 4 + np.where(fused, 2, 4) * j.gated - 2 * j.frozen - narrow
    # Adapters keep what they drop out of their inputs; gated models are trained without dropout.
    dropped = np.where(fused & (j.gated > 0) & (j.frozen == 0), 0, 2)
    normed = (2 - narrow) * j.hidden / along
    projected = (2 * j.heads * j.head_qk + 2 * j.kv_heads * (j.head_qk + j.head_v)) / j.tp
    scores = 5 * j.heads / j.tp * j.seq / j.cp * unfused
    attended = (2 + narrow) * j.heads * j.head_v / j.tp
    attention = (2 + dropped) * j.hidden / along + normed + projected + attended + scores
    dense = 2 * j.hidden / along + normed + j.ffn * of_gate / j.tp
    # Each of a token's experts takes a copy of it and makes one; the rows lie split along the sequence.
    routed_rows = j.top_k / np.where(j.sequence_parallel > 0, j.tp, 1.0)
    routed = (
        4 * j.hidden / along
        + routed_rows * (4 * np.where(j.latent > 0, j.latent, j.hidden) + j.expert_ffn * of_gate)
        + j.shared_ffn * of_gate / j.tp
    )
    mixer = 4 * j.hidden / along + c["memory.scan"] * j.mamba_inner / j.tp
    # Of a decoder's layers only a share of the positions is there.
    at = 1 - j.decoder_layers * (1 - j.decoder_share) / layers

    def per_mean_layer(attention: Floats, dense: Floats, routed: Floats) -> Floats:
        of_attention, of_dense = j.attention_layers * attention * at, j.dense_layers * dense * at
        return np.asarray(rows * (of_attention + of_dense + j.moe_layers * routed + j.mamba_layers * mixer) / layers)

    per_layer = per_mean_layer(attention, dense, routed)
    again_by = {module: computed_again(jobs, module) for module in MODULES}
    norms = normed * again_by["layernorm"]
    shared = j.shared_ffn * of_gate / j.tp
    activated = routed_rows * (2 - narrow) * j.expert_ffn
    selected = per_mean_layer(
        attention - scores * again_by["core_attn"] - projected * again_by["mla_up_proj"] - norms,
        dense - j.ffn * of_gate / j.tp * again_by["mlp"] - norms,
        np.where(again_by["moe"], 2 * j.hidden / along, routed - activated * again_by["moe_act"])
        - shared * (again_by["shared_experts"] & ~again_by["moe"]) - norms * ~again_by["moe"],
    )  # fmt: skip
    boundary = 2 * rows * j.hidden / along
    share = np.where(j.recompute_layers > 0, np.minimum(j.recompute_layers / layers, 1), 1.0)
    full = share * boundary + (1 - share) * per_layer
    selected = np.where(again_by["per-op"], c["memory.selective"] * per_layer, selected)
    return per_layer, np.select([again == "full", again == "selective"], [full, selected], per_layer)


def _layers_in_flight(jobs: Jobs, work: JobWork, last: npt.NDArray[np.bool_]) -> Floats:
    """Layers of a stage times the micro-batches whose activations it holds at once.

    1F1B, plain or interleaved; or a schedule of V shape, all stages of which hold the same (Qi et al., 2024,
    arXiv:2405.15362).
    """
    j = jobs
    per_stage = np.ceil(j.layers / j.pp)
    folded = np.array([job.in_flight for job in jobs.jobs])
    behind = np.where(last, 0.0, j.pp - 1)
    plain = np.minimum(work.micro_batches, behind + 1)
    chunks = np.minimum(work.micro_batches * j.virtual, 2 * behind + (j.virtual - 1) * j.pp + 1)
    usual = np.where(j.virtual > 1, chunks / j.virtual, plain)
    return per_stage * np.where(folded > 0, np.minimum(work.micro_batches, folded * j.pp), usual)


_MEASURED = ("megatron-deepspeed", "oneflow", "oneflow-noclip", "torchtitan")
"""Frameworks whose reserved memory the constants rest on; of the others only what must be there is believed."""
_MARGIN = 0.94
"""Share of the memory beyond which there is alarm: a miss costs a job, a false alarm a second look; errors are 5 %.

Where only states are believed, there is alarm from as much beyond the memory.
"""


def overflows(jobs: Jobs, held: Footprint) -> npt.NDArray[np.bool_]:
    """Whether a GPU's memory is exceeded; what the allocator can give back before it fails does not count."""
    frameworks = [job.framework for job in jobs.jobs]
    measured = np.array([name in _MEASURED for name in frameworks])
    states = held.parameters + held.gradients + held.optimiser
    needed = held.driver - (held.reserved - held.allocated)
    return np.where(measured, needed > _MARGIN * jobs.memory_bytes, states > jobs.memory_bytes / _MARGIN)


_USABLE = 0.94
"""Share of the memory that a program allocates at most where it computes again what does not fit."""
_RESERVABLE = 0.89
"""Share of the memory that the allocator takes at most, beside contexts and NCCL, unless what is allocated is more."""


def lacking(jobs: Jobs, held: Footprint) -> Floats:
    """Share of the activations that is computed again for want of memory: all or none where a system has one switch."""
    more = np.maximum(held.allocated - _USABLE * jobs.memory_bytes, 0.0)
    share = np.where(held.activations > 0, np.minimum(more / np.maximum(held.activations, 1.0), 1.0), 0.0)
    return np.where([PROFILES[job.framework].all_or_none for job in jobs.jobs], np.ceil(share), share)


def fitting(jobs: Jobs, held: Footprint) -> Footprint:
    """The footprint of jobs that run: activations beyond the memory are computed again, states are not.

    Where memory is exceeded all the same (`overflows`), the footprint stays what it is. Where recomputing is a switch
    for all layers, memory is that of a share, too: more devices for a job would else hold more.
    """
    room, most = _USABLE * jobs.memory_bytes, _RESERVABLE * jobs.memory_bytes
    runs = ~overflows(jobs, held)
    less = np.minimum(np.where(runs, np.maximum(held.allocated - room, 0.0), 0.0), held.activations)
    allocated = held.allocated - less
    return replace(
        held,
        activations=held.activations - less,
        allocated=allocated,
        reserved=np.where(runs, np.minimum(held.reserved - less, np.maximum(most, allocated)), held.reserved),
        driver=held.driver - less,
    )
