"""Certificates of bounds: what a search wrote is replayed, and what was forged is refused by what does not follow."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from strategy.base.budget import Budget
from strategy.base.errors import CertificateError
from strategy.bounds.certificate import VERSION, BoundCertificate, certificate_of, document
from strategy.bounds.closed_forms import ClosedForms, on_axes
from strategy.bounds.multipliers import Multipliers, PricedForms
from strategy.bounds.quick_bound import least_work
from strategy.bounds.replay import proved_of, replay
from strategy.bounds.template_cut import TemplateCut
from strategy.cost.cost import CostModel
from strategy.hardware.presets import find_cluster
from strategy.layout.config import KeptLayers, PlanConfig, Recompute
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.plan.plan import Plan, read_plan, write_plan
from strategy.plan.replayed_bound import replayed_bound
from strategy.plan.verify import verify
from strategy.search.search import search
from strategy.space.candidates import listed
from strategy.space.request import Pins, Request
from tests.support.long_parameters import long_but
from tests.support.made_once import made_once
from tests.support.small_plans import exchange_left_alone, simulated

MODEL = GptConfig(layers=8, width=2048, heads=8, sequence=1024, vocabulary=4096)


@dataclass(frozen=True)
class Case:
    """What was searched for, the plan that was found, and its certificate."""

    request: Request
    plan: Plan
    certificate: BoundCertificate

    @property
    def bound_ns(self) -> int:
        return int(self.plan.claims.lower_bound_s * 1e9)

    def refused(
        self, certificate: BoundCertificate, bound_ns: int | None = None, config: PlanConfig | None = None
    ) -> str:
        """Why a certificate is refused; a file of it is made and read first."""
        with pytest.raises(CertificateError) as caught:
            replay(
                self.request,
                certificate_of(document(certificate)),
                self.bound_ns if bound_ns is None else bound_ns,
                config or self.plan.config,
            )
        return str(caught.value)


def case_of(limit: float, pins: Pins, plan_of: Callable[[Request], Plan] | None = None) -> Case:
    """A search in a part of the memory of 16 devices, or what `plan_of` gives for one."""
    cluster = replace(find_cluster("dgx-a100"), nodes=2)
    training = Training(global_batch=64, precision=Precision.BF16)
    nbytes = int(limit * cluster.device.memory_bytes)
    request = Request("model", MODEL, training, CostModel(cluster, {}), nbytes, pins, gap=0.01)
    plan = (plan_of or searched)(request)
    assert plan.certificate is not None
    return Case(request, plan, certificate_of(plan.certificate))


@exchange_left_alone()
def searched(request: Request) -> Plan:
    return search(request, simulate=simulated, budget=Budget.of(120), simulated=1).plan


PARTLY = Pins(recompute=Recompute.FULL, kept_layers=KeptLayers.ANY, zero_stage=0, tp=2)
"""Layers between may keep what others compute again."""
ONE_WAY = Pins(recompute=Recompute.NONE, zero_stage=0)
CASES = [((0.9, ONE_WAY),), ((0.05, PARTLY),), ((0.05, ONE_WAY),)]


@pytest.fixture(scope="module", params=long_but(CASES, 1), ids=["plenty", "partly", "scarce"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return shared(*request.param, tmp_path_factory)


def shared(limit: float, pins: Pins, factory: pytest.TempPathFactory) -> Case:
    """Searched for by one worker, which takes it 20 s, and read by the others."""

    def plan_of(asked: Request) -> Plan:
        name = f"replay-{limit}-{pins.recompute}.json"
        return read_plan(made_once(factory, name, lambda path: write_plan(searched(asked), path)))

    return case_of(limit, pins, plan_of)


def test_what_a_search_wrote_is_replayed(case: Case) -> None:
    assert verify(case.plan) == []
    found = replayed_bound(case.plan)
    assert found is not None
    assert found.by_work + found.by_layers + found.by_multipliers == case.certificate.configurations
    assert found.by_multipliers == len(case.certificate.multipliers) + len(case.certificate.illegal) > 0
    assert found.cuts == len(case.certificate.layers) + len(case.certificate.cuts) > 0


def test_the_file_is_read_back(case: Case) -> None:
    again = document(certificate_of(document(case.certificate)))
    assert again == document(case.certificate)
    assert json.dumps(again, sort_keys=True) == json.dumps(case.plan.certificate, sort_keys=True)


def test_the_space_is_counted_apart(case: Case) -> None:
    """By loops of its own, over what the pins leave: see `test_every_configuration_is_listed_once` for all of it."""
    count, batch, devices = 0, 64, 16
    for pp in (1, 2, 4, 8):
        for tp in (tp for tp in (1, 2, 4, 8) if devices // pp % tp == 0 and case.certificate.pins.tp in (None, tp)):
            dp = devices // pp // tp
            for micro in (micro for micro in range(1, batch // dp + 1) if batch // dp % micro == 0):
                count += _schedules(pp, batch // dp // micro)
    assert count == case.certificate.configurations


def _schedules(pp: int, m: int) -> int:
    """1F1B and GPipe; interleaved with laps that divide the layers, whole groups; ZB-H1, ZBV with two laps."""
    if pp == 1:
        return 1
    laps = [laps for laps in range(2, 8 // pp + 1) if 8 % (pp * laps) == 0]
    return 3 + (len(laps) if m % pp == 0 else 0) + (8 // pp >= 2)


def test_a_raised_bound_is_refused(case: Case) -> None:
    """By a thousandth, and above the plan itself."""
    for above_ns in (int(case.bound_ns * 1.001), int(case.plan.claims.objective_s * 1e9) + 1):
        why = case.refused(case.certificate, above_ns)
        assert "it may take less" in why or "nothing says why" in why


def test_a_dropped_configuration_is_refused(case: Case) -> None:
    for place in [*case.certificate.multipliers][:3]:
        fewer = {at: each for at, each in case.certificate.multipliers.items() if at != place}
        assert "nothing says why" in case.refused(replace(case.certificate, multipliers=fewer))


def test_a_changed_multiplier_is_refused(case: Case) -> None:
    """Of a configuration that is bounded least, so that there is nothing to spare."""
    by_cuts = [place for place, one in case.certificate.multipliers.items() if any(known.cuts for known in one.known)]
    tight = min(by_cuts, key=lambda place: _proved(case, place))
    for change in (_less_of_cuts, _less_of_paths):
        forged = {**case.certificate.multipliers, tight: change(case.certificate.multipliers[tight])}
        assert "it may take less" in case.refused(replace(case.certificate, multipliers=forged))


def test_templates_are_shared_wherever_axes_lie_where_links_inside_are_not_the_faster_ones() -> None:
    """And of another cluster they prove nothing."""
    cluster = replace(find_cluster("dgx-a100"), nodes=2)
    turned = CostModel(replace(cluster, intra=cluster.inter, inter=cluster.intra), {})
    training = Training(global_batch=64, precision=Precision.BF16)
    request = Request("model", MODEL, training, turned, cluster.device.memory_bytes, ONE_WAY, gap=0.01)
    plan = searched(request)
    assert verify(plan) == []
    assert plan.certificate is not None
    case = Case(request, plan, certificate_of(plan.certificate))
    shared = [cut for cut in (*case.certificate.layers, *case.certificate.cuts) if cut.template.tensor_axis]
    assert {cut.template.config.tp for cut in shared} >= {2, 4}
    other = CostModel(replace(turned.cluster, intra=cluster.intra), {})
    elsewhere = replace(case.certificate, configurations=_listed(other, case))
    with pytest.raises(CertificateError):
        replay(replace(request, cost=other), elsewhere, case.bound_ns, plan.config)


def _listed(cost: CostModel, case: Case) -> int:
    request = replace(case.request, cost=cost, pins=case.certificate.pins)
    return sum(len(group) for group in listed(request))


def _proved(case: Case, place: int) -> float:
    """What the multipliers of one configuration prove."""
    forms = ClosedForms(case.request, least_work(case.request))
    for cut in case.certificate.layers:
        forms.layers_ns[on_axes(cut.template.config)] = int(cut.inequality.least)
    configs = [one for group in listed(case.request) for one in group]
    return proved_of(
        forms, case.certificate.multipliers[place], case.certificate.cuts, configs[place], case.bound_ns, ""
    )


def _less_of_cuts(one: Multipliers) -> Multipliers:
    def halved(some: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
        return tuple((at, price / 2) for at, price in some)

    return _with_known(one, lambda known: PricedForms(halved(known.forms), halved(known.cuts)))


def _with_known(one: Multipliers, change: Callable[[PricedForms], PricedForms]) -> Multipliers:
    return replace(one, known=tuple(map(change, one.known)))


def _less_of_paths(one: Multipliers) -> Multipliers:
    return replace(one, paths=tuple((path, share / 2) for path, share in one.paths))


@pytest.mark.long
def test_a_cheaper_cut_is_refused(case: Case) -> None:
    """A template that is said to cost more than it does; one that is said to have no legal layout."""
    cut, *others = case.certificate.cuts
    assert cut.least is not None
    where = f"certificate, cut {len(case.certificate.layers)}"
    dearer = replace(cut, least=cut.least + max(1, cut.least // 1000))
    assert where in case.refused(replace(case.certificate, cuts=(dearer, *others)))
    multipliers, nothing = case.certificate.multipliers, (replace(cut, least=None), *others)
    illegal = {place: 0 for place, one in multipliers.items() if any(0 in dict(known.cuts) for known in one.known)}
    forged = replace(case.certificate, cuts=nothing, illegal=illegal)
    assert where in case.refused(forged) or "does not bound it" in case.refused(forged)


@pytest.mark.long
def test_a_proof_of_something_else_is_refused(case: Case) -> None:
    """Weights of its own that are heavier than those that were proved."""
    cut, *others = case.certificate.cuts
    lighter = replace(cut.weighing, units=cut.weighing.units // 2)
    case.refused(replace(case.certificate, cuts=(replace(cut, weighing=lighter), *others)))


@pytest.mark.parametrize("by", [-1.0, 1e300, 1e-300])
def test_prices_beyond_all_measure_are_refused_in_words(case: Case, by: float) -> None:
    """Of cuts and closed forms, where paths and memory keep theirs."""

    def change(known: PricedForms) -> PricedForms:
        return PricedForms(*(tuple((at, by * price) for at, price in some) for some in (known.forms, known.cuts)))

    forged = {place: _with_known(one, change) for place, one in case.certificate.multipliers.items()}
    assert "it may take less" in case.refused(replace(case.certificate, multipliers=forged))


@pytest.mark.parametrize(
    ("bits", "shift", "factor"), [(10**6, 0, 1), (-(10**6), 0, 1), (0, 70, 1), (0, -1, 1), (0, 0, -1)]
)
def test_weights_beyond_all_measure_are_refused_in_words(case: Case, bits: int, shift: int, factor: int) -> None:
    def change(cut: TemplateCut) -> TemplateCut:
        return replace(cut, weighing=replace(cut.weighing, units=factor * cut.weighing.units, bits=bits, shift=shift))

    forged = replace(case.certificate, cuts=tuple(map(change, case.certificate.cuts)))
    assert "weights that nothing has" in case.refused(forged)


def test_a_template_that_computes_more_is_refused(case: Case) -> None:
    """What else a configuration may say, where no configuration of the space does."""
    more: list[dict[str, Any]] = [{"recompute_values": ("*",)}, {"tiles": 2}, {"zero_min_size": 8}]
    for each in more:
        names = (replace(cut.template, config=replace(cut.template.config, **each)) for cut in case.certificate.cuts)
        forged = tuple(replace(cut, template=name) for cut, name in zip(case.certificate.cuts, names, strict=True))
        assert "a template of no configuration" in case.refused(replace(case.certificate, cuts=forged))


def test_prices_of_other_rows_are_refused(case: Case) -> None:
    forged = {place: replace(one, memory=one.memory[1:]) for place, one in case.certificate.multipliers.items()}
    assert "prices of other rows" in case.refused(replace(case.certificate, multipliers=forged))


def test_what_is_said_of_fewer_ways_is_refused(case: Case) -> None:
    """All of what is known of a way; or what is known of one is said of the other."""
    two = {place: one for place, one in case.certificate.multipliers.items() if len(one.known) > 1}
    if not two:
        assert case.certificate.pins == ONE_WAY
        return
    for known in (lambda one: one.known[:1], lambda one: one.known[1:]):
        forged = {place: replace(one, known=known(one)) for place, one in two.items()}
        refused = case.refused(replace(case.certificate, multipliers={**case.certificate.multipliers, **forged}))
        assert "not of every way" in refused
    place = min(two, key=lambda place: _proved(case, place))
    turned = replace(two[place], known=two[place].known[::-1])
    case.refused(replace(case.certificate, multipliers={**case.certificate.multipliers, place: turned}))


def test_another_space_is_refused(case: Case) -> None:
    """An axis is left out of the boxes; or it is said to be pinned, where the plan is not."""
    few = replace(case.certificate, configurations=case.certificate.configurations - 1)
    assert "another space" in case.refused(few)
    away = replace(case.certificate.pins, tp=16)
    assert "another space" in case.refused(replace(case.certificate, pins=away))


def test_a_plan_outside_of_the_space_is_refused(case: Case) -> None:
    other = replace(case.plan.config, micro_batch=3)
    assert "not in the space" in case.refused(case.certificate, config=other)


def test_cheaper_devices_are_another_question(case: Case) -> None:
    """The same certificate for devices that compute twice as fast."""
    device = replace(case.plan.cluster.device, flop_per_s=2 * case.plan.cluster.device.flop_per_s)
    faster = replace(case.request, cost=CostModel(replace(case.plan.cluster, device=device), {}))
    with pytest.raises(CertificateError):
        replay(faster, case.certificate, case.bound_ns, case.plan.config)


@pytest.mark.parametrize(
    ("limit", "pins", "forgeries", "quota"),
    long_but([(0.05, PARTLY, 7, 1), (0.9, replace(ONE_WAY, dp=2), 120, 12)], 0),
    ids=["partly", "plenty"],
)
def test_no_forgery_proves_what_is_false(
    limit: float, pins: Pins, forgeries: int, quota: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Random changes of the file's numbers, under a bound above a plan that is known: none is accepted."""
    case = case_of(limit, pins) if pins.dp else shared(limit, pins, tmp_path_factory)
    false_ns = int(case.plan.claims.objective_s * 1e9) + 1
    rng, refused, kinds = random.Random(5), 0, dict.fromkeys(FORGED, 0)
    for _, kind in zip(range(forgeries), itertools.cycle(FORGED), strict=False):
        forged = FORGED[kind](case.certificate, rng)
        kinds[kind] += 1
        refused += bool(case.refused(forged, false_ns))
    print(f"forgeries by kind: {kinds}")
    assert refused == forgeries
    assert min(kinds.values()) >= quota


def _changed(
    certificate: BoundCertificate, rng: random.Random, change: Callable[[Multipliers], Multipliers]
) -> BoundCertificate:
    """Some configurations at once."""
    some = {place: change(each) if rng.random() < 0.7 else each for place, each in certificate.multipliers.items()}
    return replace(certificate, multipliers=some)


def _prices(certificate: BoundCertificate, rng: random.Random) -> BoundCertificate:
    by = rng.choice([-1.0, 0.0, 1.01, 2.0, 1e6, 1e300])

    def change(known: PricedForms) -> PricedForms:
        return replace(known, cuts=tuple((at, by * price) for at, price in known.cuts))

    return _changed(certificate, rng, lambda one: _with_known(one, change))


def _shares(certificate: BoundCertificate, rng: random.Random) -> BoundCertificate:
    by = rng.choice([-1.0, 0.0, 1.01, 2.0, 1e6])

    def change(one: Multipliers) -> Multipliers:
        return replace(one, paths=tuple((path, by * share) for path, share in one.paths))

    return _changed(certificate, rng, change)


def _memory(certificate: BoundCertificate, rng: random.Random) -> BoundCertificate:
    by = rng.choice([-1.0, -1e3, 1e3])

    def change(one: Multipliers) -> Multipliers:
        return replace(one, memory=tuple(by * (price + 1e-3) for price in one.memory))

    return _changed(certificate, rng, change)


def _times(certificate: BoundCertificate, rng: random.Random) -> BoundCertificate:
    """Paths at other points; these are paths too."""
    by = rng.choice([-1, 0, 3])

    def change(one: Multipliers) -> Multipliers:
        paths = ((replace(path, times_ns=tuple(by * ns for ns in path.times_ns)), share) for path, share in one.paths)
        return replace(one, paths=tuple(paths))

    return _changed(certificate, rng, change)


def _weights(certificate: BoundCertificate, rng: random.Random) -> BoundCertificate:
    def change(cut: TemplateCut) -> TemplateCut:
        units = cut.weighing.units * rng.choice([0, 2, -1, 2**40])
        return replace(cut, weighing=replace(cut.weighing, units=units))

    return replace(certificate, cuts=tuple(map(change, certificate.cuts)))


def _scales(certificate: BoundCertificate, rng: random.Random) -> BoundCertificate:
    def change(cut: TemplateCut) -> TemplateCut:
        shift, bits = cut.weighing.shift + rng.choice([-3, 0, 2, 70]), cut.weighing.bits + rng.choice([-2, 1, 40])
        return replace(cut, weighing=replace(cut.weighing, shift=shift, bits=bits))

    return replace(certificate, cuts=tuple(map(change, certificate.cuts)))


def _templates(certificate: BoundCertificate, rng: random.Random) -> BoundCertificate:
    """Proofs said to be of other templates."""
    cuts = list(certificate.cuts)
    names = [cut.template for cut in cuts]
    rng.shuffle(names)
    return replace(certificate, cuts=tuple(replace(cut, template=name) for cut, name in zip(cuts, names, strict=True)))


FORGED: dict[str, Callable[[BoundCertificate, random.Random], BoundCertificate]] = {
    "prices": _prices,
    "shares": _shares,
    "memory": _memory,
    "times": _times,
    "weights": _weights,
    "scales": _scales,
    "templates": _templates,
}


def test_wrong_files_are_refused_in_words(case: Case) -> None:
    good = document(case.certificate)
    arrays = good["arrays"]
    assert isinstance(arrays, str)
    wrong: list[dict[str, object]] = [
        {**good, "version": VERSION - 1},
        {**good, "version": VERSION + 1},
        {**good, "pinned": {"layouts": 1}},
        {**good, "pinned": {"dp": "many"}},
        {**good, "arrays": arrays[: len(arrays) // 2]},
        {**good, "arrays": "!"},
        {**good, "arrays": 7},
        {**good, "templates": []},
        {key: value for key, value in good.items() if key != "templates"},
    ]
    for one in wrong:
        with pytest.raises(CertificateError):
            certificate_of(one)


def test_all_of_a_multiplier_is_kept(case: Case) -> None:
    again = certificate_of(document(case.certificate))
    assert [dataclasses.astuple(one) for one in again.multipliers.values()] == [
        dataclasses.astuple(one) for one in case.certificate.multipliers.values()
    ]
    for one, other in zip(again.cuts, case.certificate.cuts, strict=True):
        assert (one.template, one.least) == (other.template, other.least)
        assert np.array_equal(one.weighing.units, other.weighing.units)
