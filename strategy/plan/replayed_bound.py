"""Replayed bound: what a plan's certificate proves of its bound, found out without any search."""

from __future__ import annotations

import math
from dataclasses import replace

from strategy.bounds.candidate_certificate import candidate_certificate_of, is_of_candidates
from strategy.bounds.candidate_replay import CandidatesReplayed, replay_candidates
from strategy.bounds.certificate import certificate_of
from strategy.bounds.replay import Replayed, replay
from strategy.plan.plan import Plan
from strategy.space.request import Request


def replayed_bound(plan: Plan) -> Replayed | CandidatesReplayed | None:
    """What the plan's certificate proves of its bound; None where it has none: the bound is claimed then.

    Raises:
        CertificateError: the bound does not follow from it.
    """
    if plan.certificate is None:
        return None
    request = Request(
        model_name=plan.model_name,
        model=plan.model,
        training=replace(plan.training, num_micro_batches=1),
        cost=plan.cost,
        memory_limit_bytes=plan.claims.memory_limit_bytes,
    )
    bound_ns = math.floor(plan.claims.lower_bound_s * 1e9)
    if is_of_candidates(plan.certificate):
        return replay_candidates(request, candidate_certificate_of(plan.certificate), bound_ns, plan.config)
    return replay(request, certificate_of(plan.certificate), bound_ns, plan.config)
