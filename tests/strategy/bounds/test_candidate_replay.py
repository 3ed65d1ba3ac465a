"""Certificates of candidates: what a search wrote is replayed, what was forged is refused by what does not follow."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import CertificateError
from strategy.bounds.candidate_certificate import (
    CandidateCertificate,
    candidate_certificate_of,
    candidate_document,
)
from strategy.bounds.candidate_replay import CandidatesReplayed, below, paths_of, replay_candidates
from strategy.bounds.layout_bound import LayoutBound, saving_aside, takes_no_less
from strategy.bounds.path_mix import EVEN, MOST_SHARES, PathMix
from strategy.cost.cost import CostModel
from strategy.ilp.certificate.words import proof_of, proof_words
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import ARRAYS, StepTimes
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.models.mlp import MlpConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan, read_plan, write_plan
from strategy.plan.replayed_bound import replayed_bound
from strategy.plan.verify import verify
from strategy.search.search import search
from strategy.space.candidates import candidates_of
from strategy.space.request import Pins, Request
from tests.support.long_parameters import long_but
from tests.support.random_requests import random_case
from tests.support.small_plans import exchange_left_alone, simulated
from tests.support.small_plans import request as small_request

GPT = GptConfig(layers=2, width=8, heads=2, sequence=4, vocabulary=16)
MLP = MlpConfig(layers=3, features=8, width=16, classes=4)


@dataclass(frozen=True)
class Case:
    """What was searched for, the plan that was found, and its certificate."""

    request: Request
    plan: Plan
    certificate: CandidateCertificate

    @property
    def bound_ns(self) -> int:
        return int(self.plan.claims.lower_bound_s * 1e9)

    @property
    def configs(self) -> list[PlanConfig]:
        return list(candidates_of(self.request))

    def refused(
        self, certificate: CandidateCertificate, bound_ns: int | None = None, config: PlanConfig | None = None
    ) -> str:
        """Why a certificate is refused; a file of it is made and read first."""
        with pytest.raises(CertificateError) as caught:
            replay_candidates(
                self.request,
                candidate_certificate_of(candidate_document(certificate)),
                self.bound_ns if bound_ns is None else bound_ns,
                config or self.plan.config,
            )
        return str(caught.value)

    def with_bounds(self, change: Callable[[LayoutBound], LayoutBound]) -> CandidateCertificate:
        """Every bound changed."""
        return replace(self.certificate, bounds=tuple((place, change(one)) for place, one in self.certificate.bounds))


@exchange_left_alone()
def searched(asked: Request, budget: Budget = UNLIMITED) -> Plan:
    """The best plan, unless time is short: then it is another one on a busy machine."""
    return search(asked, simulate=simulated, budget=budget, simulated=1).plan


def case_of(model: Model, batch: int, backend: str, pins: Pins, part: float = 1.0) -> Case:
    """A search on four devices, with a part of the memory that is taken where there is plenty."""
    asked = replace(small_request(4, Training(batch), model=model, backend=backend), pins=pins, gap=0.01)
    plan = searched(asked)
    if part < 1.0:
        asked = replace(asked, memory_limit_bytes=int(part * max(plan.claims.peak_memory_bytes)))
        plan = searched(asked)
    assert plan.certificate is not None
    return Case(asked, plan, candidate_certificate_of(plan.certificate))


CASES = {
    "pipelines, exposed": lambda: case_of(GPT, 8, "cupy", Pins(pp=2, num_micro_batches=2)),
    "all degrees": lambda: case_of(MLP, 4, "numpy", Pins()),
    "scarce": lambda: case_of(MLP, 12, "cupy", Pins(num_micro_batches=2, recompute=Recompute.NONE), 0.7),
}


@cache
def case_named(name: str) -> Case:
    return CASES[name]()


@pytest.fixture(scope="module", params=long_but(CASES, 0), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return case_named(request.param)


def test_what_a_search_wrote_is_replayed(case: Case, tmp_path: Path) -> None:
    """Also of the plan's file."""
    assert verify(case.plan) == []
    write_plan(case.plan, tmp_path / "plan.json")
    found = replayed_bound(read_plan(tmp_path / "plan.json"))
    assert isinstance(found, CandidatesReplayed)
    assert found.configurations == case.certificate.configurations == len(case.configs)
    assert 0 < found.by_proof <= found.proofs == len(case.certificate.bounds)
    assert found.by_work + found.by_plainer > 0


@pytest.mark.long
def test_the_cases_have_proofs_of_every_kind() -> None:
    cases = {name: case_named(name) for name in CASES}
    every = {name: [one for _, one in found.certificate.bounds] for name, found in cases.items()}
    assert any(point is not None for one in every["pipelines, exposed"] for point in one.mix.points)
    assert {one.within_memory for one in every["scarce"]} == {True, False}
    assert any(one.least is None for one in every["scarce"])
    assert any(len(one.mix.points) > 1 for one in every["scarce"])
    assert any(one.mix.points == (None,) for one in every["all degrees"])
    replayed = replayed_bound(cases["all degrees"].plan)
    assert isinstance(replayed, CandidatesReplayed)
    assert min(replayed.by_work, replayed.by_proof, replayed.by_plainer) > 0


def test_the_file_is_read_back(case: Case) -> None:
    again = candidate_document(candidate_certificate_of(candidate_document(case.certificate)))
    assert again == candidate_document(case.certificate) == case.plan.certificate


def test_a_raised_bound_is_refused(case: Case) -> None:
    """By a thousandth, and above the plan itself."""
    for above_ns in (int(case.bound_ns * 1.001) + 1, objective_ns(case.plan) + 1):
        assert "it may take less" in case.refused(case.certificate, above_ns)


def objective_ns(plan: Plan) -> int:
    return round(plan.claims.objective_s * 1e9)


def test_a_dropped_configuration_is_refused(case: Case) -> None:
    for at in range(len(case.certificate.bounds)):
        fewer = (*case.certificate.bounds[:at], *case.certificate.bounds[at + 1 :])
        why = case.refused(replace(case.certificate, bounds=fewer))
        assert "nothing says why" in why or "it may take less" in why


@pytest.mark.parametrize("shares", [(0,), (-1,), (1, -1), (MOST_SHARES + 1,), (2**62, 2**62)])
def test_shares_of_no_mix_are_refused(case: Case, shares: tuple[int, ...]) -> None:
    def change(one: LayoutBound) -> LayoutBound:
        points = (*one.mix.points, *one.mix.points)[: len(shares)]
        return replace(one, mix=PathMix(points, shares))

    assert "shares that no mix has" in case.refused(case.with_bounds(change))


def test_other_shares_and_no_paths_are_refused(case: Case) -> None:
    """More paths than were proved make a cost dearer, but the step no longer."""

    def twice(one: LayoutBound) -> LayoutBound:
        return replace(one, mix=replace(one.mix, shares=tuple(2 * share for share in one.mix.shares)))

    assert "it may take less" in case.refused(case.with_bounds(twice))
    none = case.with_bounds(lambda one: replace(one, mix=PathMix((), ())))
    assert "a mix of no paths" in case.refused(none)


@pytest.mark.parametrize(("by", "words"), [(-1, "a path of no point"), (10**9, "a path of no point")])
def test_times_that_no_step_has_are_refused(by: int, words: str) -> None:
    case = case_named("pipelines, exposed")
    assert words in case.refused(case.with_bounds(lambda one: replace(one, mix=_moved(one.mix, by))))


def _moved(mix: PathMix, by: int) -> PathMix:
    """Its points with all times multiplied."""
    return replace(mix, points=tuple(None if one is None else _times(one, by) for one in mix.points))


def _times(point: StepTimes, by: int) -> StepTimes:
    return replace(point, **{name: by * (getattr(point, name) + 1) for name in ARRAYS})


def test_times_of_another_pipeline_are_refused() -> None:
    case = case_named("pipelines, exposed")

    def cut(point: StepTimes) -> StepTimes:
        shorter = {name: getattr(point, name)[: max(1, len(getattr(point, name)) // 2)] for name in ARRAYS}
        return replace(point, **{**shorter, "forward_message_ns": np.zeros(0, np.int64)})

    def change(one: LayoutBound) -> LayoutBound:
        points = tuple(None if each is None else cut(each) for each in one.mix.points)
        return replace(one, mix=replace(one.mix, points=points))

    with pytest.raises(CertificateError, match="times of another pipeline"):
        replay_candidates(case.request, case.with_bounds(change), case.bound_ns, case.plan.config)


def test_more_than_was_proved_is_refused(case: Case) -> None:
    """By a thousandth, or that nothing is legal; without a proof nothing is."""

    def dearer(one: LayoutBound) -> LayoutBound:
        return one if one.least is None else replace(one, least=one.least + one.least // 1000 + 1)

    assert "the proof does not reach its bound" in case.refused(case.with_bounds(dearer))
    nothing = case.with_bounds(lambda one: replace(one, least=None))
    why = case.refused(nothing)
    assert "nothing is legal, which does not follow" in why or "nothing says why" in why
    assert "it has no proof" in case.refused(case.with_bounds(lambda one: replace(one, proof=None)))
    beyond = case.with_bounds(lambda one: replace(one, least=10**18))
    assert "a least cost that nothing has" in case.refused(beyond)


@pytest.mark.long
def test_a_proof_within_memory_is_none_without_limit() -> None:
    case = case_named("scarce")
    assert "certificate, bound" in case.refused(case.with_bounds(lambda one: replace(one, within_memory=False)))


def test_what_bounds_a_candidate_within_memory_says_nothing_of_others() -> None:
    """Nor does one that saves more memory of one that saves less."""
    plain = PlanConfig(2, 1, 1, 1, 2, Schedule.ONE_F_ONE_B)
    saving = replace(plain, recompute=Recompute.FULL, zero_stage=3)
    assert saving_aside(plain) == saving_aside(saving)
    assert takes_no_less(saving, plain)
    assert not takes_no_less(plain, saving)
    assert not takes_no_less(replace(plain, zero_stage=3), replace(plain, recompute=Recompute.FULL))
    assert not takes_no_less(replace(saving, tp=2), plain)
    again, waiting = replace(plain, recompute=Recompute.FULL), replace(plain, offload=Offload.ACTIVATIONS)
    assert takes_no_less(replace(saving, offload=Offload.ALL), plain)
    assert takes_no_less(replace(again, offload=Offload.OPTIMIZER), again)
    assert takes_no_less(replace(waiting, offload=Offload.ALL), waiting)
    assert not takes_no_less(replace(again, offload=Offload.ACTIVATIONS), again)
    assert not takes_no_less(replace(again, offload=Offload.ACTIVATIONS), waiting)
    assert not takes_no_less(replace(plain, offload=Offload.OPTIMIZER), waiting)
    case = case_named("all degrees")
    configs = case.configs
    moved = [
        (
            next(at for at, one in enumerate(configs) if one != configs[place] and takes_no_less(one, configs[place])),
            one,
        )
        for place, one in case.certificate.bounds
        if any(one != configs[place] and takes_no_less(one, configs[place]) for one in configs)
    ]
    assert moved
    assert "nothing says why" in case.refused(replace(case.certificate, bounds=tuple(moved)))
    limited = case.with_bounds(lambda one: replace(one, within_memory=True))
    why = case.refused(limited)
    assert "nothing says why" in why


@pytest.mark.long
def test_where_memory_is_scarce_activations_wait_on_the_host() -> None:
    """And the certificate is of a space with all that may wait there."""
    case = case_named("scarce")
    assert {config.offload for config in case.configs} == {*Offload}
    assert case.plan.config.offload.of_activations


@pytest.mark.long
def test_activations_wait_on_the_host_if_that_takes_least() -> None:
    case = case_named("scarce")
    kept = searched(replace(case.request, pins=replace(case.request.pins, offload=Offload.NONE)))
    assert case.plan.claims.objective_s < kept.claims.objective_s


def test_cheaper_devices_are_another_question(case: Case) -> None:
    """The same certificate for devices that compute twice as fast."""
    device = case.plan.cluster.device
    faster = replace(device, flop_per_s=2 * device.flop_per_s, memory_bytes_per_s=2 * device.memory_bytes_per_s)
    asked = replace(case.request, cost=CostModel(replace(case.plan.cluster, device=faster), {}))
    with pytest.raises(CertificateError):
        replay_candidates(asked, case.certificate, case.bound_ns, case.plan.config)


def test_another_space_is_refused(case: Case) -> None:
    """An axis is left out; or it is said to be pinned, where the plan is not."""
    few = replace(case.certificate, configurations=case.certificate.configurations - 1)
    assert "another space" in case.refused(few)
    away = replace(case.certificate.pins, tp=1 if case.plan.config.tp > 1 else 2)
    assert "another space" in case.refused(replace(case.certificate, pins=away))
    there = sum(one.tp == away.tp for one in case.configs)
    counted = replace(case.certificate, pins=away, configurations=there)
    assert "not in the space" in case.refused(counted)


def test_a_plan_outside_of_the_space_is_refused(case: Case) -> None:
    assert "not in the space" in case.refused(case.certificate, config=replace(case.plan.config, micro_batch=77))
    outside = replace(case.certificate, bounds=((10**6, case.certificate.bounds[0][1]),))
    assert "a bound of no configuration" in case.refused(outside)


def test_wrong_files_are_refused_in_words(case: Case) -> None:
    good = candidate_document(case.certificate)
    arrays = good["arrays"]
    assert isinstance(arrays, str)
    wrong: list[dict[str, object]] = [
        {**good, "kind": "boxes"},
        {**good, "version": 9},
        {**good, "pinned": {"layouts": 1}},
        {**good, "pinned": {"dp": "many"}},
        {**good, "arrays": arrays[: len(arrays) // 2]},
        {**good, "arrays": "!"},
        {**good, "arrays": 7},
        {key: value for key, value in good.items() if key != "configurations"},
    ]
    for one in wrong:
        with pytest.raises(CertificateError):
            candidate_certificate_of(one)
    with pytest.raises(CertificateError):
        replayed_bound(replace(case.plan, certificate={**good, "kind": "boxes"}))


@pytest.mark.parametrize(
    ("name", "forgeries", "quota"),
    long_but([(name, *count) for count in ((7, 1), (42, 6)) for name in CASES], 0),
)
def test_no_forgery_proves_what_is_false(name: str, forgeries: int, quota: int) -> None:
    """Everything is said to take more than a plan that is known, by random changes of all that a certificate says."""
    case = case_named(name)
    false_ns = objective_ns(case.plan) + 1
    rng, why = random.Random(7), Counter[str]()
    kinds = dict.fromkeys(FORGED, 0)
    for _, kind in zip(range(forgeries), itertools.cycle(FORGED), strict=False):
        forged = FORGED[kind](case, _claiming(case, false_ns), rng)
        kinds[kind] += 1
        words = case.refused(_raised(case, forged, false_ns), false_ns)
        why["a proof" if "certificate, bound" in words else "a number" if "configuration" in words else words] += 1
    print(f"forgeries by kind: {kinds}; refused by {dict(why)}")
    assert sum(kinds.values()) == forgeries
    assert min(kinds.values()) >= quota
    assert why["a proof"] >= forgeries // 2


def _claiming(case: Case, false_ns: int) -> CandidateCertificate:
    """Bounds of all candidates that closed forms leave below: their own, or those of another one."""
    known: dict[int, list[LayoutBound]] = {}
    for place, bound in case.certificate.bounds:
        known.setdefault(place, []).append(bound)
    _, other = case.certificate.bounds[0]
    low = below(case.request, case.configs, false_ns)
    bounds = [(place, one) for place in low for one in known.get(place, [replace(other, mix=EVEN)])]
    return replace(case.certificate, bounds=tuple(bounds))


def _raised(case: Case, certificate: CandidateCertificate, false_ns: int) -> CandidateCertificate:
    """All that is said is said of the false bound; of what is no mix as it is."""

    def change(config: PlanConfig, one: LayoutBound) -> LayoutBound:
        try:
            number = paths_of(case.request, config, one).number
        except CertificateError:
            return one
        return one if one.least is None else replace(one, least=max(one.least, false_ns * number))

    configs = case.configs
    return replace(certificate, bounds=tuple((place, change(configs[place], one)) for place, one in certificate.bounds))


Forge = Callable[[Case, CandidateCertificate, random.Random], CandidateCertificate]


def _each(change: Callable[[LayoutBound, random.Random], LayoutBound]) -> Forge:
    """Changes some bounds at once."""

    def forge(case: Case, certificate: CandidateCertificate, rng: random.Random) -> CandidateCertificate:
        some = tuple((place, change(one, rng) if rng.random() < 0.7 else one) for place, one in certificate.bounds)
        return replace(certificate, bounds=some)

    return forge


def _shares(one: LayoutBound, rng: random.Random) -> LayoutBound:
    by = rng.choice([-1, 0, 3, 1000])
    return replace(one, mix=replace(one.mix, shares=tuple(by * share for share in one.mix.shares)))


def _points(one: LayoutBound, rng: random.Random) -> LayoutBound:
    """Paths at other points; these are paths too."""
    return replace(one, mix=_moved(one.mix, rng.choice([0, 3, 10**4])))


def _illegal(one: LayoutBound, rng: random.Random) -> LayoutBound:
    return replace(one, least=None, proof=one.proof if rng.random() < 0.7 else None)


def _memory(one: LayoutBound, rng: random.Random) -> LayoutBound:
    return replace(one, within_memory=not one.within_memory)


def _words(one: LayoutBound, rng: random.Random) -> LayoutBound:
    """A number of a proof; where that is none any more, the proof as it is."""
    if one.proof is None:
        return one
    words = proof_words(one.proof).copy()
    at = rng.randrange(words.size)
    words[at] += rng.choice([-1, 1, 2**20, -(2**40)])
    try:
        return replace(one, proof=proof_of(words))
    except CertificateError:
        return one


def _places(case: Case, certificate: CandidateCertificate, rng: random.Random) -> CandidateCertificate:
    """Proofs said to be of other candidates."""
    places = [place for place, _ in certificate.bounds]
    rng.shuffle(places)
    return replace(
        certificate, bounds=tuple((place, one) for place, (_, one) in zip(places, certificate.bounds, strict=True))
    )


def _as_they_are(case: Case, certificate: CandidateCertificate, rng: random.Random) -> CandidateCertificate:
    return certificate


FORGED: dict[str, Forge] = {
    "claims alone": _as_they_are,
    "shares": _each(_shares),
    "points": _each(_points),
    "illegal": _each(_illegal),
    "memory": _each(_memory),
    "words": _each(_words),
    "places": _places,
}


KINDS = ["optimal", "exposed", "pipeline", "by proof", "by plainer"]


@pytest.mark.parametrize(("certified", "kinds"), long_but([(1, ["optimal"]), (12, KINDS)], 0), ids=["few", "all"])
def test_random_searches_are_certified(certified: int, kinds: list[str]) -> None:
    """Whatever is searched for on few devices, of which certificates speak."""
    seen, seed = Counter[str](), 0
    while seen["certified"] < certified:
        seed += 1
        found = random_case(seed)
        if found.points <= 0:
            continue
        plan = searched(replace(found.request, gap=0.0), Budget.of(100))
        if plan.certificate is None:
            assert found.request.pins.layouts or found.request.pins.zero_owner
            seen["other pins"] += 1
            continue
        replayed = replayed_bound(plan)
        assert isinstance(replayed, CandidatesReplayed)
        assert replayed.bound_ns <= objective_ns(plan)
        seen["certified"] += 1
        seen["optimal"] += plan.claims.gap == 0
        seen["exposed"] += plan.cluster.overlaps
        seen["pipeline"] += plan.config.pp > 1
        seen["by proof"] += replayed.by_proof > 0
        seen["by plainer"] += replayed.by_plainer > 0
    print(f"{seed} seeds: {dict(seen)}")
    assert min(seen[name] for name in kinds) > 0
