"""Work: what a job's step consists of, counted per micro-batch and GPU, without a fitted figure.

FLOPs of products by shape, bytes that memory-bound kernels move, kernels that are launched, bytes of each collective.
`strategy.closed_form.price` turns it into seconds. T is tokens of a micro-batch on a GPU, h the hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.closed_form.frameworks import PROFILES
from strategy.closed_form.job import Jobs
from strategy.closed_form.products import Floats, MultiplyingDevices, ProductSeconds, grouped_training, training
from strategy.closed_form.recompute import share_again
from strategy.hardware.devices import Maker
from strategy.kernels.on_device import at_width, attention_seconds


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over something: products, batched products of unfused attention, fused attention, bytes, kernels.

    Products take seconds as kernels do by themselves, and so does fused attention: `fused` are
    those of its forward pass, `backward` and `ordered` those whose gradients are computed, `ordered` by sums that keep
    their order, as in deterministic runs. `scores` are bytes of attention scores, `moved` bytes of other memory-bound
    kernels, `scanned` those of state-space scans, `cast` elements that are cast to narrow operands, `routed` bytes of
    permuting tokens to experts, `convolved` FLOPs and `images` bytes of convolution nets. Where weights stand still,
    `adapted` are bytes of the adapters beside them, which `adapter_kernels` of the kernels move, and `spared` the
    products of the weights' gradients, which nobody computes then.
    """

    products: ProductSeconds
    grouped: ProductSeconds
    batched: ProductSeconds
    fused: Floats
    backward: Floats
    ordered: Floats
    scores: Floats
    moved: Floats
    adapted: Floats
    spared: ProductSeconds
    scanned: Floats
    cast: Floats
    routed: Floats
    convolved: Floats
    images: Floats
    kernels: Floats
    adapter_kernels: Floats


@dataclass(frozen=True, slots=True)
class JobWork:
    """A step's work. `forward` and `backward` are of one micro-batch through all blocks of a GPU's share of tensors.

    `logits` is forward and backward of the head. Sizes in bytes: `activation` is one boundary tensor (T x h),
    `dispatched` what a GPU sends to experts in one direction of one pass, `parameters` and `expert_parameters`
    the parameters that one GPU of one stage computes with. `collectives` are tensor-parallel ones of
    one pass, `routed_kernels` those of experts in a forward pass, `edge_kernels` those of embedding, logits and loss in
    both passes, `gathered` the tokens that all slices of an expert take (`etp`), `recompute` the share of the forward
    pass that is done again.
    """

    forward: Pass
    backward: Pass
    logits: ProductSeconds
    logits_bytes: Floats
    activation: Floats
    dispatched: Floats
    parameters: Floats
    expert_parameters: Floats
    edge_parameters: Floats
    micro_batches: Floats
    tokens: Floats
    recompute: Floats
    collectives: Floats
    routed_kernels: Floats
    edge_kernels: Floats
    gathered: Floats

    def of(self, some: npt.NDArray[np.bool_]) -> JobWork:
        """The work of some of the jobs; the mask is (jobs,)."""
        found: JobWork = _masked(self, some)
        return found


def _masked(part: Any, some: npt.NDArray[np.bool_]) -> Any:
    """All arrays of a value, and of the values in it, where a mask holds."""
    if isinstance(part, np.ndarray):
        return part[some]
    return replace(part, **{field.name: _masked(getattr(part, field.name), some) for field in fields(part)})


_ADAPTER_KERNELS = 8
"""Kernels of a layer's two adapters, forward."""
_EDGE_KERNELS = 40
"""Kernels of embedding, logits and loss, forward and backward."""


def measure(jobs: Jobs) -> JobWork:
    """Count the work of jobs; every array is (jobs,)."""
    j = jobs
    images = j.conv_flop > 0
    tokens = np.where(images, 0.0, j.micro_batch * j.seq / j.cp)
    forward, backward = _passes(jobs, tokens)
    # A vocabulary that is cut is padded to whole tiles; one that is not stays as ragged as it is.
    vocab = np.where(j.tp > 1, np.ceil(j.vocab / (128 * j.tp)) * 128, j.vocab)
    one = np.ones(len(jobs))
    positions = tokens * j.logit_share * (1 + j.mtp_layers)
    logits, of_inputs, of_weights = training(_in_half(jobs), positions, vocab, j.hidden, one)
    dense, expert = _parameters(jobs)
    attention, dense_layers = _at_full_length(jobs)
    return JobWork(
        forward=forward,
        backward=backward,
        logits=logits + of_inputs + of_weights * (1 - j.frozen),
        logits_bytes=positions * vocab * 4,
        activation=_element_nbytes(jobs) * tokens * j.hidden,
        dispatched=forward.routed,
        parameters=dense / (j.tp * j.pp),
        expert_parameters=expert / (j.ep * j.etp * j.pp),
        edge_parameters=j.vocab * j.hidden / j.tp,
        micro_batches=np.maximum(np.round(j.global_batch / (j.dp * j.micro_batch)), 1),
        tokens=tokens,
        recompute=share_again(jobs),
        collectives=np.where(images, 0.0, attention + dense_layers + j.mamba_layers + j.moe_layers),
        routed_kernels=_routed_kernels(jobs),
        edge_kernels=np.where(images, 0.0, _EDGE_KERNELS),
        gathered=forward.routed * j.etp,
    )


def _passes(jobs: Jobs, tokens: Floats) -> tuple[Pass, Pass]:
    """Forward and backward of one micro-batch through all blocks."""
    j = jobs
    one = np.ones(len(jobs))
    weights = [(m, n, k, one, layers) for m, n, k, layers in _products(jobs, tokens)]
    of_experts = _expert_products(jobs, tokens)
    wide = MultiplyingDevices.of(jobs, [job.precision for job in jobs.jobs])
    forward, of_inputs, of_weights = _sum(
        [(training(wide, m, n, k, count), layers) for m, n, k, count, layers in weights]
    )
    in_experts = _of_experts(jobs)
    grouped, of_rows, of_expert_weights = _sum(
        [(grouped_training(in_experts, m, n, k, count), layers) for m, n, k, count, layers in of_experts]
    )
    trained = 1 - j.frozen
    # Narrow operands are cast where they are made: inputs once, gradients by rows and by columns.
    casts = j.bits < 16
    cast = sum((m * k * count * layers for m, _, k, count, layers in (*weights, *of_experts)), 0.0 * one) * casts
    cast_back = (
        sum((2 * m * n * count * layers for m, n, _, count, layers in (*weights, *of_experts)), 0.0 * one) * casts
    )
    unfused = np.array([not job.flash for job in jobs.jobs]) & (j.heads > 0)
    heads = j.micro_batch * j.heads / j.tp * unfused
    in_half = _in_half(jobs)
    batched, *batched_back = _sum(
        [(training(in_half, m, n, k, count), layers) for m, n, k, count, layers in _attention_products(jobs, heads)]
    )
    fused = _fused_attention(jobs, unfused)
    ordered = np.array([PROFILES[job.framework].deterministic for job in jobs.jobs])
    nbytes = _element_nbytes(jobs)
    scores = nbytes * heads * (j.seq / j.cp) * j.seq * _at_full_length(jobs)[0]
    moved, adapted = _moved_bytes(jobs, tokens), _adapted_bytes(jobs, tokens)
    nothing = of_weights * 0.0
    scanned = nbytes * tokens * j.mamba_inner / j.tp * j.mamba_layers
    sent = tokens * j.top_k * _routed_width(jobs) * nbytes * j.moe_layers / np.where(j.moe_layers > 0, j.tp, 1)
    conv = j.micro_batch * j.conv_flop
    images = nbytes * j.micro_batch * j.conv_elements
    kernels, of_adapters = _kernels(jobs), _ADAPTER_KERNELS * j.frozen * j.attention_layers
    # A scan's and a norm's backward pass reads the inputs, the outputs and the gradients, and writes two.
    return (
        Pass(
            forward, grouped, batched, fused, 0 * one, 0 * one, scores,
            moved, adapted, nothing, scanned, cast, sent, conv, images, kernels, of_adapters,
        ),
        Pass(
            of_inputs + of_weights * trained, of_rows + of_expert_weights * trained, batched_back[0] + batched_back[1],
            0 * one, fused * ~ordered, fused * ordered, 2 * scores, 1.6 * moved, 1.6 * adapted, of_weights * j.frozen,
            2 * scanned, cast_back, sent, 2 * conv, 2 * images, 1.9 * kernels, 1.9 * of_adapters,
        ),
    )  # fmt: skip


def _element_nbytes(jobs: Jobs) -> Floats:
    """Of an element of an activation."""
    return np.where(jobs.bits == 32, 4.0, 2.0)


def _in_half(jobs: Jobs) -> MultiplyingDevices:
    """Jobs as products multiply that are not narrower than halves: attention and the head."""
    return MultiplyingDevices.of(jobs, _half_widths(jobs))


def _of_experts(jobs: Jobs) -> MultiplyingDevices:
    """Jobs as experts multiply: whatever the recipe, MaxText's gain next to nothing from narrow operands."""
    widths = ["half" if job.device.maker is Maker.GOOGLE else job.precision for job in jobs.jobs]
    return MultiplyingDevices.of(jobs, widths)


def _half_widths(jobs: Jobs) -> list[str]:
    return ["single" if job.bits == 32 else "half" for job in jobs.jobs]


def _routed_width(jobs: Jobs) -> Floats:
    """Elements of a token as experts take it."""
    return np.where(jobs.latent > 0, jobs.latent, jobs.hidden)


def _expert_products(jobs: Jobs, tokens: Floats) -> list[tuple[Floats, Floats, Floats, Floats, Floats]]:
    """(rows, columns, depth, experts of a GPU, layers) of the two products of experts."""
    j = jobs
    experts = np.maximum(j.experts, 1)
    local = np.maximum(experts / j.ep, 1)
    rows = tokens / np.where(j.moe_layers > 0, j.tp, 1) * j.top_k * j.ep * j.etp / experts
    rows = np.where(rows > 2, 2 * np.round(rows / 2), rows)  # a mean over experts is no odd number of rows
    routed = np.where(j.moe_layers > 0, local, 0.0)
    width, inner = _routed_width(jobs), j.expert_ffn / j.etp
    return [
        (rows, inner * (1 + j.gated), width, routed, j.moe_layers),
        (rows, width, inner, routed, j.moe_layers),
    ]


def _attention_products(jobs: Jobs, heads: Floats) -> list[tuple[Floats, Floats, Floats, Floats, Floats]]:
    """(rows, columns, depth, heads of a GPU, layers) of the two products of attention that is not fused."""
    j = jobs
    span = j.seq / j.cp
    layers = _at_full_length(jobs)[0]
    return [(span, j.seq, j.head_qk, heads, layers), (span, j.head_v, j.seq, heads, layers)]


def _fused_attention(jobs: Jobs, unfused: npt.NDArray[np.bool_]) -> Floats:
    """Seconds of fused attention forward, of the share of positions that is attended to."""
    j = jobs
    sequences, heads, kv_heads = j.micro_batch * j.attended, j.heads / j.tp, np.maximum(j.kv_heads / j.tp, 1)
    head_dim, found = (j.head_qk + j.head_v) / 2, np.zeros(len(jobs))
    for place, (job, width) in enumerate(zip(jobs.jobs, _half_widths(jobs), strict=True)):
        if job.flash and not unfused[place]:
            at = slice(place, place + 1)
            found[at] = attention_seconds(
                at_width(job.device, width), sequences[at], (j.seq / j.cp)[at], j.seq[at], heads[at], kv_heads[at],
                head_dim[at], causal=True,
            )  # fmt: skip
    return found * _at_full_length(jobs)[0]


def _at_full_length(jobs: Jobs) -> tuple[Floats, Floats]:
    """Layers of attention and dense feed-forwards, each counted by the share of all positions that it sees.

    A decoder's layer has two attentions, of its own positions and of the encoder's.
    """
    j = jobs
    less = j.decoder_layers * (1 - j.decoder_share)
    return j.attention_layers - 2 * less, j.dense_layers - less


def _moved_bytes(jobs: Jobs, tokens: Floats) -> Floats:
    """Bytes of norms, residuals and activation functions; sequence parallelism cuts those of width h."""
    j = jobs
    along = np.where(j.sequence_parallel > 0, j.tp, 1.0)
    attention, dense = _at_full_length(jobs)
    inner = (
        attention * (j.heads * j.head_qk + j.kv_heads * (j.head_qk + j.head_v) + j.heads * j.head_v)
        + dense * j.ffn * (2 + j.gated)
        + j.moe_layers * j.shared_ffn * (2 + j.gated)
    )
    outer = 5 * j.hidden * (attention + dense + j.moe_layers + j.mamba_layers) / along
    return _element_nbytes(jobs) * tokens * (outer + inner / j.tp)


def _kernels(jobs: Jobs) -> Floats:
    """Kernels that a forward pass launches."""
    j = jobs
    cast = np.where(j.bits < 16, 2, 0)  # of an input and, for the backward pass, of its transpose
    # Ranks of a context pass keys on, those of a state-space mixer exchange heads, there and back.
    attention = 12 + np.where(j.kv_rank > 0, 6, 0) + 2 * cast + _ADAPTER_KERNELS * j.frozen + 6 * (j.cp - 1)
    of_layers = (
        j.attention_layers * attention + j.dense_layers * (5 + 2 * cast) + _routed_kernels(jobs)
        + j.mamba_layers * (9 + 2 * cast + 16 * (j.cp > 1))
    )  # fmt: skip
    return np.where(j.conv_flop > 0, j.conv_kernels, of_layers)


def _routed_kernels(jobs: Jobs) -> Floats:
    """Kernels of experts in a forward pass: routing and products, which deterministic runs issue expert by expert.

    Slices of an expert collect and give back what they share.
    """
    ordered = np.array([PROFILES[job.framework].deterministic for job in jobs.jobs])
    products = np.where(ordered, 2 * np.maximum(jobs.experts / jobs.ep, 1), 8)
    return np.asarray(jobs.moe_layers * (14 + products + 6 * (jobs.etp > 1)), dtype=float)


def _fan_in(jobs: Jobs) -> Floats:
    """Columns of the product that makes queries, keys and values at once; none where they come from latent vectors."""
    j = jobs
    return np.where(j.kv_rank > 0, 0.0, j.heads * j.head_qk + j.kv_heads * (j.head_qk + j.head_v))


def _adapted_bytes(jobs: Jobs, tokens: Floats) -> Floats:
    """Bytes that adapters move beside what attention takes and what it gives (LoRA).

    Their products are too shallow to be bound by anything but reading what goes in and adding to what comes out.
    """
    j = jobs
    read = j.hidden + j.heads * j.head_v / j.tp
    added = 2 * (_fan_in(jobs) / j.tp + j.hidden)
    return np.where(j.frozen > 0, _element_nbytes(jobs) * tokens * (read + added) * j.attention_layers, 0.0)


def _products(jobs: Jobs, tokens: Floats) -> list[tuple[Floats, Floats, Floats, Floats]]:
    """(rows, columns, depth, how many layers have it) of each product with weights, but for those of experts."""
    j = jobs
    latent = j.kv_rank > 0
    queries = j.heads * j.head_qk
    fan_in = _fan_in(jobs)
    attention, dense = _at_full_length(jobs)
    return [
        (tokens, fan_in / j.tp, j.hidden, attention),
        (tokens, np.where(latent, j.q_rank + j.kv_rank, 0.0), j.hidden, attention),
        (tokens, queries / j.tp, j.q_rank, attention),
        (tokens, j.heads * (j.head_qk + j.head_v) / j.tp, j.kv_rank, attention),
        (tokens, j.hidden, j.heads * j.head_v / j.tp, attention),
        (tokens, j.ffn * (1 + j.gated) / j.tp, j.hidden, dense),
        (tokens, j.hidden, j.ffn / j.tp, dense),
        (tokens, j.shared_ffn * (1 + j.gated) / j.tp, j.hidden, j.moe_layers),
        (tokens, j.hidden, j.shared_ffn / j.tp, j.moe_layers),
        (tokens, 2 * j.latent / j.tp, j.hidden, j.moe_layers),
        (tokens, (2 * j.mamba_inner + 2 * 8 * j.mamba_state) / j.tp, j.hidden, j.mamba_layers),
        (tokens, j.hidden, j.mamba_inner / j.tp, j.mamba_layers),
        (tokens, j.hidden, 2 * j.hidden / j.tp, j.mtp_layers),
    ]


def _parameters(jobs: Jobs) -> tuple[Floats, Floats]:
    """Parameters of all layers but those of experts, and those of experts."""
    j = jobs
    queries = j.heads * j.head_qk
    width = np.where(j.latent > 0, j.latent, j.hidden)
    latent = j.hidden * (j.q_rank + j.kv_rank) + queries * j.q_rank + j.heads * (j.head_qk + j.head_v) * j.kv_rank
    attention = j.hidden * _fan_in(jobs) + j.hidden * j.heads * j.head_v + np.where(j.kv_rank > 0, latent, 0.0)
    dense = (
        j.attention_layers * attention
        + j.dense_layers * (2 + j.gated) * j.hidden * j.ffn
        + j.moe_layers * ((2 + j.gated) * j.hidden * j.shared_ffn + j.hidden * (j.experts + 2 * j.latent))
        + j.mamba_layers * j.hidden * (3 * j.mamba_inner + 16 * j.mamba_state)
        + 4 * j.hidden * (j.attention_layers + _feeds(jobs))
        + j.parameters
    )
    return dense, j.moe_layers * (2 + j.gated) * width * j.expert_ffn * j.experts


def trained_parameters(jobs: Jobs) -> Floats:
    """(jobs,) parameters that are trained, of the whole model; where its weights stand still, those of adapters."""
    j = jobs
    dense, expert = _parameters(jobs)
    edges = j.vocab * j.hidden * np.where(j.tied > 0, 1, 2)
    beside = j.adapter_rank * (2 * j.hidden + _fan_in(jobs) + j.heads * j.head_v) * j.attention_layers
    return np.where(j.frozen > 0, beside, dense + expert + edges)


def _feeds(jobs: Jobs) -> Floats:
    return jobs.dense_layers + jobs.moe_layers


def _sum(parts: Sequence[tuple[tuple[ProductSeconds, ...], Floats]]) -> tuple[ProductSeconds, ...]:
    """Products by what they are for, each times its layers."""
    (first, layers), *others = parts
    sums = tuple(one * layers for one in first)
    for each, times in others:
        sums = tuple(one + more * times for one, more in zip(sums, each, strict=True))
    return sums
