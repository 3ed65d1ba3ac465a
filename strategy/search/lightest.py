"""Lightest: where no configuration of a deep model fits, one that holds little is laid out in full.

So there is an error that names a limit that works, as memory is allocated, and what fills it then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.configurations import MeshGroup
from strategy.bounds.least_work import LeastWork
from strategy.bounds.linear_step import stage_rows
from strategy.bounds.point import AT_HEAD, AT_WORK, BYTES, MOVED, SIZE, TIMES, FloatArray
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.lowering.lower import lower_priced
from strategy.lowering.memory import memory_nbytes
from strategy.models import Model
from strategy.search.candidate.candidate_solve import solved_as
from strategy.search.candidate.infeasibility import Tightest, nothing_fits
from strategy.search.full_layout import priced_in_full
from strategy.search.search_state import LayoutProposal
from strategy.search.template.answers import Question, Templates
from strategy.search.template.stages import between_places, pipelined
from strategy.space.candidates import offloads_of
from strategy.space.request import Request

LOOKED_AT = 3
"""So many groups are looked at, those whose layers hold least."""
FILLING = 0.5
"""What fills the memory of a program is found in less than this part of the time that making it takes."""
NS_PER_BYTE = 10.0
"""What a byte counts beside a nanosecond where little shall be held."""


def nothing_fits_deep(
    request: Request,
    short: Model,
    work: LeastWork,
    groups: Sequence[MeshGroup],
    known: Sequence[LayoutProposal],
    budget: Budget,
) -> InfeasibleError:
    """What to say where nothing was found to fit.

    Args:
        request: what is searched for.
        short: the model with few layers.
        work: what the training takes at least.
        groups: all configurations.
        known: proposals that do not fit.
        budget: when all must end; a limit that works is looked for as long as there is time.
    """
    proposals, otherwise = [*known, *_light_proposals(request, short, work, groups, budget)], host_may_hold(request)
    if not proposals:
        return nothing_fits(request, None, complete=False, otherwise=otherwise)
    one = min(proposals, key=lambda one: max(one.found.peak_bytes))
    begin = time.monotonic()
    try:
        budget.check()
        priced = priced_in_full(request, one, budget)
        solved = solved_as(one.config(request.model.layers), priced, 0, budget)
        program = lower_priced(priced, folds=True, budget=budget)
        budget.at_most(budget.left_s() - FILLING * (time.monotonic() - begin)).check()
    except OutOfTimeError:
        return nothing_fits(request, None, complete=False, about=max(one.found.peak_bytes), otherwise=otherwise)
    nearest = Tightest(solved, program, max(memory_nbytes(program)))
    return nothing_fits(request, nearest, complete=False, otherwise=otherwise)


def host_may_hold(request: Request) -> str:
    """What else may be tried where a host may hold some, which was not looked at."""
    cluster, pins = request.cost.cluster, request.pins
    if cluster.host is None or cluster.groups or pins.trainer is not None or pins.offload not in (None, Offload.NONE):
        return ""
    if pins.offload is None and offloads_of(request, Recompute.NONE)[1:]:
        return ""
    return 'let the host hold what devices do not use (pin offload = "optimizer" or "all")'


def _light_proposals(
    request: Request, short: Model, work: LeastWork, groups: Sequence[MeshGroup], budget: Budget
) -> Iterator[LayoutProposal]:
    layers, templates, forms = request.model.layers, Templates(request, short), ClosedForms(request, work)
    light = sorted((min(group.configs, key=forms.least_bytes) for group in groups), key=forms.least_bytes)
    for config in light[:LOOKED_AT]:
        if budget.is_over():
            return
        try:
            answer = templates.answer(Question(config, _byte_weights(config, layers), False, np.inf, budget))
        except OutOfTimeError:
            return
        if answer.proposed is not None:
            overlap, between_ns = request.overlap_of(config), between_places(answer.proposed.messages, config)
            found = pipelined(answer.proposed.parts, config, layers, between_ns, overlap, answer.proposed.tied)
            yield LayoutProposal(found, answer.proposed.signatures, answer.proposed.deep_ops)


def _byte_weights(config: PlanConfig, layers: int) -> FloatArray:
    """(SIZE,): bytes by how often the first stage holds them, and a little of time."""
    weights = np.zeros(SIZE)
    weights[TIMES] = 1.0
    weights[BYTES] = NS_PER_BYTE * np.max(stage_rows(config, layers, 0), axis=0)[BYTES]
    weights[MOVED] = weights[AT_HEAD] = weights[AT_WORK] = NS_PER_BYTE
    return weights
