"""Exposure: what the objective and the simulation of a plan differ in, by what causes it.

In the simulation communication runs beside computation, and is *exposed* where a rank communicates and computes
nothing. The objective knows of that for stages as a whole (`step_times`); here it is what acts take alone, and its
bubble what is left. Each is split into

    compute      acts that compute; simulated, also what they lose beside communication
    exchange     of gradients, per micro-batch or per step
    gathers      of parameters
    collectives  all others: those of the tensor axis, of contexts and of experts
    transfers    between stages, but for messages of passes, for which the objective's schedule waits
    bubble       the rest

as means over ranks or stages. Where several are exposed at once, the later one in this list counts as hidden.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.simulate import Simulation
from strategy.graph.graph import Phase
from strategy.layout.arrangement import Action
from strategy.layout.gradient_exchange import exchanged
from strategy.layout.objective import Priced
from strategy.layout.parameter_gathers import of_parameters
from strategy.lowering.exchange_buckets import in_buckets
from strategy.program.program import ActKind
from strategy.sbp.tensor import Rate

COMPUTE, EXCHANGE, GATHERS, COLLECTIVES, TRANSFERS, BUBBLE = CAUSES = (
    *("compute", "exchange", "gathers", "collectives", "transfers", "bubble"),
)
_HIDE = (COMPUTE, COLLECTIVES, TRANSFERS, GATHERS, EXCHANGE)
"""Who hides whom: computation all others, and what has to be waited for what may be late."""


def differences_s(priced: Priced, found: Simulation) -> dict[str, float]:
    """By cause, what the objective counts more than the simulation, in seconds; together the difference of the two."""
    cause_of = communication_causes(priced)
    counted, simulated = _counted_s(priced, cause_of), _simulated_s(found, cause_of)
    return {cause: counted[cause] - simulated[cause] for cause in CAUSES}


def communication_causes(priced: Priced) -> dict[str, str]:
    """Action, alone or a bucket of them -> its cause; none of what loads."""
    graph, arrangement = priced.graph, priced.arrangement
    parameters = of_parameters(graph)
    gradients = exchanged(graph)
    found = {}
    for action in (*arrangement.actions, *in_buckets(priced).arrangement.actions):
        if action.kind is ActKind.TRANSFER:
            found[action.name] = TRANSFERS
        elif not action.kind.is_communication:
            if action.kind is not ActKind.LOAD:
                found[action.name] = COMPUTE
        elif arrangement.tensors[action.reads[0]].value in parameters:
            found[action.name] = GATHERS
        else:
            prepares = arrangement.tensors[action.reads[0]].value in gradients or action.phase is Phase.UPDATE
            found[action.name] = EXCHANGE if prepares else COLLECTIVES
    return found


def _counted_s(priced: Priced, cause_of: Mapping[str, str]) -> dict[str, float]:
    """What the objective says, a mean over stages."""
    stages, count = len(priced.layout.stages.placements), priced.pipeline.num_micro_batches
    found = dict.fromkeys(CAUSES, 0.0)
    for action, features in zip(priced.arrangement.actions, priced.features, strict=True):
        cause = cause_of.get(action.name)
        if cause is not None and not _is_message(action):
            acts = 1 if action.rate is Rate.STEP else count
            found[cause] += acts * priced.cost.seconds(features) / stages
    found[BUBBLE] = priced.objective_ns / 1e9 - sum(found.values())
    return found


def _is_message(action: Action) -> bool:
    return action.kind is ActKind.TRANSFER and action.rate is Rate.MICRO_BATCH


def _simulated_s(found: Simulation, cause_of: Mapping[str, str]) -> dict[str, float]:
    """What a step of the simulation says, a mean over ranks."""
    run = found.run
    acts, streams = run.acts, run.program.streams
    cause = np.array([_HIDE.index(cause_of[a.name]) if a.name in cause_of else -1 for a in run.program.actors])
    of_act, rank = cause[acts.actor], np.array([stream.rank for stream in streams])[acts.stream]
    total = dict.fromkeys(CAUSES, 0.0)
    ranks = np.unique(rank)
    for one in ranks:
        before_ns = 0
        for last, name in enumerate(_HIDE):
            here = (rank == one) & (of_act >= 0) & (of_act <= last)
            until_ns = covered_ns(acts.start_ns[here], acts.end_ns[here])
            total[name] += (until_ns - before_ns) / 1e9 / len(ranks) / found.steps
            before_ns = until_ns
    total[BUBBLE] = found.step_time_s - sum(total.values())
    return total


def covered_ns(begin: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """Time that some intervals cover."""
    order = np.argsort(begin, kind="stable")
    begin, until = begin[order], np.maximum.accumulate(end[order])
    return int(np.maximum(0, until - np.maximum(begin, np.concatenate(([0], until[:-1])))).sum())
