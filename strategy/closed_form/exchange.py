"""Exchange: seconds of every collective of a step, by who takes part and which links lie between them.

Ranks are numbered as Megatron numbers them: tensor-parallel ones side by side, then context, data, pipeline stages
outermost; experts are dealt out over neighbours. What of the seconds is hidden behind compute is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.closed_form import collectives
from strategy.closed_form.collectives import Group
from strategy.closed_form.constants import Constant, Constants
from strategy.closed_form.frameworks import PROFILES
from strategy.closed_form.job import Jobs
from strategy.closed_form.products import Floats
from strategy.closed_form.work import JobWork
from strategy.hardware.devices import FABRICS

Mask = npt.NDArray[np.bool_]
CONSTANTS = (
    *(Constant(f"fabric.{name}", prior, spread, f"share of the NICs' data sheet that groups over nodes reach, {name}")
      for name, prior, spread in zip(FABRICS, (0.9, 0.4, 0.6), (0.05, 0.15, 0.15), strict=True)),
    Constant("pp.exposed", 1.0, 0.4, "share of messages to the next stage, or of keys and values, that is not hidden"),
    Constant("ep.exposed", 0.8, 0.4, "share of the exchange between experts that is not hidden"),
    Constant("ep.exposed.far", 0.5, 0.5, "the same where experts are on other nodes"),
    Constant("dp.exposed.experts", 0.5, 0.4, "share of the exchange of experts' gradients that is not hidden"),
    Constant("ep.skew", 1.1, 0.1, "tokens of the busiest expert's GPU over the mean"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """Seconds of each exchange with every link at its data sheet's rate, and whether it leaves the node.

    `tp` is one collective of a boundary tensor, `dp` one all-reduce of 2-byte gradients (experts
    apart), `gather` one all-gather of
    2-byte parameters over the ranks that share them out, `pp` one message between stages, `ep` one dispatch to experts
    (with what ranks of one expert collect from each other), `cp` one rotation of keys and values.
    """

    tp: Floats
    dp: Floats
    dp_expert: Floats
    gather: Floats
    pp: Floats
    ep: Floats
    cp: Floats
    tp_far: Mask
    dp_far: Mask
    dp_expert_far: Mask
    ep_far: Mask


def exchanges(jobs: Jobs, work: JobWork, constants: Constants) -> ExchangeTimes:
    """Price the collectives; `constants` are those of `collectives`."""
    j = jobs
    family = np.array([collectives.family_of(job.device) for job in jobs.jobs], dtype=np.intp)
    switched = np.array([job.device.switched or job.device.domain > 8 for job in jobs.jobs])
    domain = np.where(j.domain > 8, np.where(j.domain > 16, j.domain, 16.0), j.gpus_per_node)

    def group(ranks: Floats, stride: Floats) -> Group:
        local = np.clip(np.floor(domain / stride), 1, ranks)
        return Group(ranks, local, j.link_bytes_per_s, j.nic_bytes_per_s, family, switched, np.zeros(len(jobs), bool))

    tensor = group(j.tp, np.ones(len(jobs)))
    data = group(j.dp * j.cp, j.tp)
    shards = group(j.spread, j.tp)
    stages = group(j.pp, j.tp * j.cp * j.dp)
    expert = group(j.ep, j.etp)
    slices = group(j.etp, np.ones(len(jobs)))
    scattered = np.array([PROFILES[job.framework].scattered for job in jobs.jobs])
    # Megatron-LM sends a boundary tensor once, not once per tensor-parallel rank, since it interleaves stages.
    once = scattered | (j.sequence_parallel > 0) | (j.virtual > 1)
    boundary = work.activation / np.where(once, j.tp, 1.0)
    keys = work.activation * 2 * j.kv_heads * j.head_qk / np.maximum(j.hidden, 1) / j.tp
    own = 2 * (work.parameters + work.edge_parameters / j.pp)
    replicas = group(np.maximum(j.dp * j.cp * j.tp / (j.ep * j.etp), 1), j.ep * j.etp)
    layers = np.maximum(j.moe_layers, 1)
    experts = 2 * work.expert_parameters
    return ExchangeTimes(
        tp=collectives.all_reduce(work.activation, tensor, constants),
        dp=collectives.all_reduce(own, data, constants),
        dp_expert=collectives.all_reduce(experts, replicas, constants),
        gather=collectives.reduce_scatter(own, shards, constants)
        + collectives.reduce_scatter(experts, replicas, constants),
        pp=collectives.send(boundary, stages, constants),
        ep=(
            collectives.all_to_all(work.dispatched / layers, expert, constants)
            + collectives.reduce_scatter(work.gathered / layers, slices, constants)
        )
        * j.moe_layers,
        cp=collectives.send(keys, group(j.cp, j.tp), constants) * (j.cp - 1),
        tp_far=_far(tensor),
        dp_far=_far(data),
        dp_expert_far=_far(replicas),
        ep_far=_far(expert),
    )


def _far(group: Group) -> Mask:
    return np.asarray(group.nodes > 1, dtype=bool)
