"""Certify candidates: the certificate of a search that solves them one by one, from the proofs of its solver."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from strategy.base.errors import CertificateError
from strategy.bounds.candidate_certificate import CandidateCertificate
from strategy.bounds.candidate_replay import below, paths_of
from strategy.bounds.certificate import pinned
from strategy.bounds.layout_bound import LayoutBound, saving_aside, takes_no_less
from strategy.bounds.path_mix import EVEN
from strategy.bounds.quick_bound import quick_bound_ns
from strategy.layout.config import PlanConfig
from strategy.search.candidate.candidate_solve import CandidateBound
from strategy.space.candidates import candidates_of
from strategy.space.request import Request


@dataclass(slots=True)
class CandidateProofs:
    """The best that was proved of candidates: memory aside, and in all.

    Attributes:
        free: candidate -> (what no layout takes less than, in nanoseconds; why).
        own: the same, of the layouts that hold no more than may be.
    """

    free: dict[PlanConfig, tuple[float, LayoutBound]] = field(default_factory=dict)
    own: dict[PlanConfig, tuple[float, LayoutBound]] = field(default_factory=dict)

    def learn(self, config: PlanConfig, examined: CandidateBound) -> None:
        """Keep what is better than what was known."""
        bound_ns = math.inf if examined.bound_ns is None else examined.bound_ns
        for known, found_ns, why in (
            (self.free, examined.free_bound_ns, examined.free_why),
            (self.own, bound_ns, examined.why),
        ):
            if why is not None and (config not in known or found_ns > known[config][0]):
                known[config] = found_ns, why

    def learn_no_signatures(self, config: PlanConfig) -> None:
        """Some op of a candidate has none."""
        self.own[config] = math.inf, LayoutBound(EVEN, within_memory=False, least=None, proof=None)

    def alike(self) -> dict[PlanConfig, list[PlanConfig]]:
        """What candidates have in common that differ in what saves memory -> those with a proof, memory aside."""
        found: dict[PlanConfig, list[PlanConfig]] = {}
        for config in self.free:
            found.setdefault(saving_aside(config), []).append(config)
        return found


def certified_candidates(
    request: Request, proofs: CandidateProofs, bound_ns: int
) -> tuple[CandidateCertificate | None, int]:
    """(certificate, the bound that it proves): the bound asked for, or less where there was no time for a proof.

    None where something is pinned, or devices are of several types, that certificates do not speak of.

    Args:
        request: what was searched for.
        proofs: of its candidates.
        bound_ns: that of all of them, or less.
    """
    try:
        pinned(request.pins)
    except ValueError:
        return None, bound_ns
    if request.cost.cluster.groups or request.deduction is not None:
        return None, bound_ns
    configs, alike = list(candidates_of(request)), proofs.alike()
    places = {config: place for place, config in enumerate(configs)}
    chosen: dict[tuple[PlanConfig, LayoutBound], int] = {}
    proved_ns = bound_ns
    for place in below(request, configs, bound_ns):
        config = configs[place]
        plainer = [one for one in alike.get(saving_aside(config), []) if takes_no_less(config, one)]
        options = [(one, proofs.free[one][1]) for one in plainer if one in places]
        if config in proofs.own:
            options.append((config, proofs.own[config][1]))
        best, best_ns = _best(request, options, chosen, bound_ns)
        if best is not None:
            chosen[best] = best_ns
        proved_ns = min(proved_ns, max(best_ns, quick_bound_ns(request, config)))
    bounds = sorted(
        ((places[config], why) for config, why in chosen), key=lambda pair: (pair[0], pair[1].within_memory)
    )
    return CandidateCertificate(request.pins, len(configs), tuple(bounds)), proved_ns


_Option = tuple[PlanConfig, LayoutBound]


def _best(
    request: Request, options: Iterable[_Option], chosen: dict[_Option, int], enough_ns: int
) -> tuple[_Option | None, int]:
    """The first of some proofs that is enough, of those chosen already if there is one; else the one that says most."""
    best: tuple[_Option | None, int] = None, 0
    for option in sorted(options, key=lambda one: one not in chosen):
        found_ns = chosen[option] if option in chosen else _proved_ns(request, *option)
        if found_ns > best[1]:
            best = option, found_ns
        if found_ns >= enough_ns:
            break
    return best


def _proved_ns(request: Request, config: PlanConfig, why: LayoutBound) -> int:
    """What is proved of a step of a candidate; 0 where numbers are beyond what certificates hold."""
    try:
        return why.bound_ns(paths_of(request, config, why).number)
    except CertificateError:
        return 0
