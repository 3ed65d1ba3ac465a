"""Candidate replay: whether a certificate proves that no candidate of a space takes less than a bound.

The space is listed anew, closed forms are computed anew, paths are followed anew, and every proof is replayed on the
layout problem of its candidate, as it is built from model, configuration and paths. Nothing is solved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from strategy.base.errors import CertificateError, InfeasibleError
from strategy.bounds.candidate_certificate import CandidateCertificate
from strategy.bounds.layout_bound import MOST_COST, LayoutBound, saving_aside, takes_no_less
from strategy.bounds.least_steps import least_steps_ns
from strategy.bounds.quick_bound import least_work
from strategy.ilp.certificate.check import prove
from strategy.layout.config import PlanConfig
from strategy.layout.step_times import MeanPath
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.candidates import candidates_of
from strategy.space.layout_problem import layout_problem
from strategy.space.request import Request


@dataclass(frozen=True, slots=True)
class CandidatesReplayed:
    """What was proved: a bound of every candidate, in nanoseconds, and how many there are on which level."""

    bound_ns: int
    by_work: int
    by_proof: int
    by_plainer: int
    proofs: int

    @property
    def configurations(self) -> int:
        """Of the space."""
        return self.by_work + self.by_proof + self.by_plainer

    @property
    def summary(self) -> str:
        """How many are bounded on which level."""
        proofs = f"{self.by_proof} by {self.proofs} proofs of their layout problems"
        return f"{self.by_work} by their work, {proofs}, {self.by_plainer} by others that save less memory"


def replay_candidates(
    request: Request, certificate: CandidateCertificate, bound_ns: int, config: PlanConfig
) -> CandidatesReplayed:
    """What a certificate proves of a bound.

    Args:
        request: model, training, prices and memory; its pins are those of the certificate.
        certificate: what is to be replayed.
        bound_ns: that no candidate shall take less than.
        config: of the plan that claims it, one of the space.

    Raises:
        CertificateError: anything that does not follow, with the candidate or the proof.
    """
    request = replace(request, pins=certificate.pins)
    if request.cost.cluster.groups:
        raise CertificateError("no such certificate speaks of devices of several types")
    configs = list(candidates_of(request))
    if len(configs) != certificate.configurations:
        got, expected = f"{certificate.configurations} configurations", f"{len(configs)}"
        raise CertificateError("another space", got=got, expected=expected)
    if config.in_space not in configs:
        raise CertificateError("the plan's configuration is not in the space", got=str(config))
    said = _said(request, configs, certificate)
    low = below(request, configs, bound_ns)
    by_proof = [place for place in low if said.own_ns.get(place, 0) >= bound_ns]
    for place in {*low} - {*by_proof}:
        _check_plainer(said, configs, place, bound_ns)
    for place, bounds in said.bounds.items():  # last: it takes longest
        check_layouts(request, configs[place], bounds)
    counts = len(configs) - len(low), len(by_proof), len(low) - len(by_proof)
    return CandidatesReplayed(bound_ns, *counts, len(certificate.bounds))


def below(request: Request, configs: Sequence[PlanConfig], bound_ns: int) -> list[int]:
    """The places of candidates that closed forms alone leave below a bound."""
    bounds = least_steps_ns(least_work(request), configs)
    return [place for place, least_ns in enumerate(bounds) if least_ns < bound_ns]


def paths_of(request: Request, config: PlanConfig, bound: LayoutBound) -> MeanPath:
    """The paths that a bound of a candidate speaks of.

    Raises:
        CertificateError: these are none, or the bound is beyond what costs are.
    """
    if bound.least is not None and not 0 <= bound.least <= MOST_COST:
        raise CertificateError("a least cost that nothing has", got=bound.least)
    return bound.mix.checked_mean(request.pipeline_of(config), config.pp, request.cost)


def check_layouts(request: Request, config: PlanConfig, bounds: Iterable[tuple[LayoutBound, str]]) -> None:
    """Replay what is said of the layouts of one candidate, each with where it is said.

    Raises:
        CertificateError: it does not follow.
    """
    space = space_of(request, config, free_rules(config))
    for bound, where in bounds:
        along = replace(space, along=paths_of(request, config, bound))
        try:
            problem = layout_problem(along, limit=request.memory_limit_bytes if bound.within_memory else None).problem
        except InfeasibleError:
            continue  # not even signatures are left
        if bound.proof is None:
            raise CertificateError("it has no proof", where=where)
        try:
            prove(problem, bound.proof, bound.least)
        except CertificateError as error:
            raise CertificateError(str(error), where=where) from None


@dataclass(slots=True)
class _Said:
    """What is said of which candidate, not replayed yet: of all its layouts, memory aside or not, and where.

    Attributes:
        bounds: place of a candidate -> what is said of it.
        own_ns: place -> the most that this says of a step.
        free: what candidates have in common that differ in what saves memory -> (place, what is said, memory aside).
    """

    bounds: dict[int, list[tuple[LayoutBound, str]]] = field(default_factory=dict)
    own_ns: dict[int, int] = field(default_factory=dict)
    free: dict[PlanConfig, list[tuple[int, int]]] = field(default_factory=dict)


def _said(request: Request, configs: Sequence[PlanConfig], certificate: CandidateCertificate) -> _Said:
    found = _Said()
    for at, (place, bound) in enumerate(certificate.bounds):
        where = f"certificate, bound {at}"
        if not 0 <= place < len(configs):
            raise CertificateError("a bound of no configuration of the space", where=where, got=place)
        try:
            bound_ns = bound.bound_ns(paths_of(request, configs[place], bound).number)
        except CertificateError as error:
            raise CertificateError(str(error), where=where) from None
        found.bounds.setdefault(place, []).append((bound, where))
        found.own_ns[place] = max(found.own_ns.get(place, 0), bound_ns)
        if not bound.within_memory and bound.least is not None:
            found.free.setdefault(saving_aside(configs[place]), []).append((place, bound_ns))
    return found


def _check_plainer(said: _Said, configs: Sequence[PlanConfig], place: int, bound_ns: int) -> None:
    """That a candidate takes no less than one that saves less memory."""
    config = configs[place]
    plainer = [
        found_ns for other, found_ns in said.free.get(saving_aside(config), []) if takes_no_less(config, configs[other])
    ]
    found_ns = max([said.own_ns.get(place, 0), *plainer])
    if found_ns >= bound_ns:
        return
    where, expected = f"configuration {place} ({config})", f"{bound_ns} ns at least"
    if not found_ns:
        raise CertificateError("nothing says why it takes no less", where=where, expected=expected)
    raise CertificateError("it may take less", where=where, got=f"{found_ns} ns proved", expected=expected)
