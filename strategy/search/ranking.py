"""Ranking: the time and the memory of very many configurations of one transformer, in closed form, all at once.

Narayanan et al. 2021 (arXiv:2104.04473), sections 2.2 and 3.2-3.3: with m micro-batches, p stages and v virtual stages,

    step = (m + (p - 1) / v) * (pass of a micro-batch through a stage) + (gradients along the data axis)

A pass is the stage's share of the matrix products, the tensor axis' collectives (two per layer and pass: an all-gather
and a reduce-scatter make an all-reduce), and the messages to the next stage. No overlap, no attention to uneven layers:
what it leaves out, the search and the simulator look at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategy.hardware.cluster import Cluster

Floats = NDArray[np.float64]
STATE_NBYTES = 18
"""Of a parameter: itself and its gradient as halves; in single precision a copy, two moments and the gradient."""

HALF_NBYTES = 2


@dataclass(frozen=True, slots=True)
class Transformer:
    """What the closed form knows of a model. FLOPs are of the forward products of one sample."""

    layers: int
    width: int
    sequence: int
    parameters: int
    flop_per_sample: float


@dataclass(frozen=True, slots=True)
class Configurations:
    """Degrees and micro-batches, one entry per configuration. `recompute` is 1 where passes are computed again."""

    dp: Floats
    tp: Floats
    pp: Floats
    micro_batch: Floats
    virtual_stages: Floats
    recompute: Floats

    @staticmethod
    def of(
        dp: ArrayLike,
        tp: ArrayLike,
        pp: ArrayLike,
        micro_batch: ArrayLike,
        virtual_stages: ArrayLike = 1,
        recompute: ArrayLike = 0,
    ) -> Configurations:
        """From whatever broadcasts to one shape."""
        columns = np.broadcast_arrays(dp, tp, pp, micro_batch, virtual_stages, recompute)
        return Configurations(*(np.ascontiguousarray(column, dtype=np.float64) for column in columns))


def transformer_flop(layers: int, width: int, sequence: int, vocabulary: int) -> float:
    """FLOPs of the forward products of one sample: the parts of Narayanan et al. 2021, equation 3."""
    return 24.0 * sequence * layers * width**2 * (1 + sequence / (6 * width) + vocabulary / (12 * layers * width))


def step_seconds(model: Transformer, cluster: Cluster, flop_per_s: float, batch: int, many: Configurations) -> Floats:
    """Seconds of a step of `batch` samples, on devices that multiply at `flop_per_s`."""
    node = cluster.devices_per_node
    slots = batch / (many.dp * many.micro_batch) + (many.pp - 1) / many.virtual_stages
    tokens = many.micro_batch * model.sequence
    compute = many.micro_batch * (model.flop_per_sample / flop_per_s) * (3 + many.recompute) / (many.tp * many.pp)
    inside, near, far = many.tp <= node, cluster.intra, cluster.inter
    activation = tokens * (model.width * HALF_NBYTES)
    along = activation * (2 * (many.tp - 1) / many.tp) / np.where(inside, near.bytes_per_s, far.bytes_per_s)
    along += 2 * (many.tp - 1) * np.where(inside, near.latency_s, far.latency_s)
    collectives = along * (4 + 2 * many.recompute) * model.layers / many.pp
    message = activation / many.tp / np.where(many.tp * many.dp < node, near.bytes_per_s, far.bytes_per_s)
    messages = 2 * many.virtual_stages * (message + far.latency_s) * (many.pp > 1)
    gradients = (model.parameters * 4.0) / (many.tp * many.pp)
    together = many.tp * many.dp <= node
    reduced = 2 * (many.dp - 1) / many.dp * gradients / np.where(together, near.bytes_per_s, far.bytes_per_s)
    return np.asarray(slots * (compute + collectives + messages) + reduced, dtype=np.float64)


def device_nbytes(model: Transformer, batch: int, many: Configurations) -> Floats:
    """Bytes on the first stage: state, and activations of the micro-batches in flight.

    34 bytes per token and unit of width and layer (Korthikanti et al. 2022, arXiv:2205.05198, equation 2, without the
    scores, which fused attention does not store), or the input of each layer where passes are computed again.
    """
    state = model.parameters * STATE_NBYTES / (many.tp * many.pp)
    tokens = many.micro_batch * model.sequence * model.width
    ahead = np.minimum(many.pp * (1 + (many.pp - 1) / (many.pp * many.virtual_stages)), batch / many.dp)
    kept = np.where(many.recompute > 0, HALF_NBYTES, 34.0 / many.tp)
    return np.asarray(state + tokens * model.layers / many.pp * ahead * kept, dtype=np.float64)


def ranking(
    model: Transformer, cluster: Cluster, flop_per_s: float, batch: int, many: Configurations
) -> NDArray[np.intp]:
    """Indices of the configurations that fit a device, fastest first."""
    seconds = step_seconds(model, cluster, flop_per_s, batch, many)
    (fits,) = (device_nbytes(model, batch, many) <= cluster.device.memory_bytes).nonzero()
    return np.asarray(fits[np.argsort(seconds[fits], kind="stable")], dtype=np.intp)
