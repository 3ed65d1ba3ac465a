"""Lightest: where no configuration of a deep model fits, one that holds little is laid out in full.

So there is an error that names a limit that works, as memory is allocated, and what fills it then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from strategy.base.budget import UNLIMITED
from strategy.base.errors import InfeasibleError
from strategy.bounds.configurations import MeshGroup
from strategy.bounds.least_work import LeastWork
from strategy.bounds.point import HELD, SIZE, SUMS, TIMES, FloatArray
from strategy.graph.graph import Phase
from strategy.layout.config import PlanConfig
from strategy.lowering.lower import lower_priced
from strategy.lowering.memory import memory_nbytes
from strategy.models import Model
from strategy.search.candidate.candidate_solve import solved_as
from strategy.search.candidate.infeasibility import Tightest, nothing_fits
from strategy.search.full_layout import priced_in_full
from strategy.search.search_state import LayoutProposal
from strategy.search.template.answers import Question, Templates
from strategy.search.template.outer_approximation import blocks, chunks_in_flight
from strategy.search.template.stages import parts_at, pipelined
from strategy.space.candidates import Request

LOOKED_AT = 3
"""So many groups are looked at, those whose layers hold least."""
NS_PER_BYTE = 10.0
"""What a byte counts beside a nanosecond where little shall be held."""


def least_bytes(work: LeastWork, layers: int, config: PlanConfig) -> float:
    """What the first stage of a configuration holds at least, by its layers alone."""
    least, here, run = work.bytes_of_layer(config), layers // config.pp, layers // (config.pp * config.virtual_stages)
    found = ((sums, chunks_in_flight(config, 0, Phase.FORWARD, Phase.BACKWARD, sums=sums)) for sums in (False, True))
    return max(here * (least.held + sums * least.sums) + run * sum(chunks) * least.saved for sums, chunks in found)


def nothing_fits_deep(
    request: Request, short: Model, work: LeastWork, groups: Sequence[MeshGroup], known: Sequence[LayoutProposal]
) -> InfeasibleError:
    """What to say where nothing was found to fit.

    Args:
        request: what is searched for.
        short: the model with few layers.
        work: what the training takes at least.
        groups: all configurations.
        known: proposals that do not fit.
    """
    proposals = [*known, *_light_proposals(request, short, work, groups)]
    if not proposals:
        return nothing_fits(request, None, complete=False)
    one = min(proposals, key=lambda one: max(one.found.peak_bytes))
    priced = priced_in_full(request, one)
    program = lower_priced(priced, folds=True)
    solved = solved_as(one.found.config, priced, 0)
    return nothing_fits(request, Tightest(solved, program, max(memory_nbytes(program))), complete=False)


def _light_proposals(
    request: Request, short: Model, work: LeastWork, groups: Sequence[MeshGroup]
) -> Iterator[LayoutProposal]:
    layers, templates = request.model.layers, Templates(request, short)

    def lightest(group: MeshGroup) -> PlanConfig:
        return min(group.configs, key=lambda config: least_bytes(work, layers, config))

    for config in sorted(map(lightest, groups), key=lambda config: least_bytes(work, layers, config))[:LOOKED_AT]:
        try:
            answer = templates.answer(Question(config, _byte_weights(config, layers), False, np.inf, UNLIMITED))
        except InfeasibleError:
            continue
        if answer.proposed is not None:
            overlaps, between_ns = request.cost.cluster.overlaps, answer.proposed.between_ns
            found = pipelined(answer.proposed.parts, config, layers, between_ns, overlaps=overlaps)
            yield LayoutProposal(found, answer.proposed.signatures, answer.proposed.deep_ops)


def _byte_weights(config: PlanConfig, layers: int) -> FloatArray:
    """(SIZE,): bytes by how often the first stage holds them, and a little of time."""
    weights, where = np.zeros(SIZE), parts_at(config, layers)[0]
    weights[TIMES] = 1.0
    weights[HELD] = weights[SUMS] = NS_PER_BYTE * where.sum(0)
    for part, in_flight in blocks(config, 0, sums=True):
        weights[part] = NS_PER_BYTE * np.array(in_flight) @ where
    return weights
