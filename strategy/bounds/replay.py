"""Replay: whether a certificate proves that no configuration of a space takes less than a bound.

The space is listed anew, closed forms are computed anew, every proof of a template's cut is replayed on the template's
problem as it is built from the model, and multipliers are summed up in whole numbers. Nothing is solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from strategy.base.beside import beside
from strategy.base.budget import UNLIMITED
from strategy.base.errors import CertificateError, InfeasibleError, SbplanError
from strategy.bounds.certificate import BoundCertificate
from strategy.bounds.closed_forms import ClosedForms, all_of_micro_batch, on_axes, plain
from strategy.bounds.crossings import crossings_of
from strategy.bounds.inequality import Inequality
from strategy.bounds.kept_layers import ways_of
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.linear_step import memory_rows
from strategy.bounds.multipliers import MOST_NS, Bounded, Multipliers, PricedForms, proved_ns, tempered
from strategy.bounds.quick_bound import least_work
from strategy.bounds.template_cut import TemplateCut
from strategy.ilp.certificate.check import prove
from strategy.layout.config import PlanConfig
from strategy.space.candidates import listed
from strategy.space.request import Request
from strategy.space.short_model import shortened

MOST_TEMPLATES = 8
"""So many are kept: cuts of the same one follow each other."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was proved: a bound of every configuration, in nanoseconds, and how many there are on which level."""

    bound_ns: int
    by_work: int
    by_layers: int
    by_multipliers: int
    cuts: int

    @property
    def configurations(self) -> int:
        """Of the space."""
        return self.by_work + self.by_layers + self.by_multipliers

    @property
    def summary(self) -> str:
        """How many are bounded on which level."""
        several = f"{self.by_multipliers} by multipliers over {self.cuts} cuts of templates"
        return f"{self.by_work} by their work, {self.by_layers} by their layers, {several}"


def replay(request: Request, certificate: BoundCertificate, bound_ns: int, config: PlanConfig) -> Replayed:
    """What a certificate proves of a bound.

    Args:
        request: model, training, prices and memory; its pins are those of the certificate.
        certificate: what is to be replayed.
        bound_ns: that no configuration shall take less than.
        config: of the plan that claims it, one of the space.

    Raises:
        CertificateError: anything that does not follow, with the configuration or the cut.
    """
    request = replace(request, pins=certificate.pins)
    configs = [one for group in listed(request) for one in group]
    if len(configs) != certificate.configurations:
        got, expected = f"{certificate.configurations} configurations", f"{len(configs)}"
        raise CertificateError("another space", got=got, expected=expected)
    if config.in_space not in configs:
        raise CertificateError("the plan's configuration is not in the space", got=str(config))
    forms, every = ClosedForms(request, least_work(request)), (*certificate.layers, *certificate.cuts)
    known = {way for config in configs for way in (plain(config), *ways_of(request, config))}
    for at, cut in enumerate(every):
        if cut.template.config not in known:
            raise CertificateError("a template of no configuration of the space", where=f"certificate, cut {at}")
        if not cut.weighing.is_in_range:
            raise CertificateError("weights that nothing has", where=f"certificate, cut {at}")
    counts = _check_configurations(forms, certificate, configs, bound_ns)
    for outcome in beside([partial(_check_templates, request, some) for some in _dealt(every)]):  # they take longest
        if isinstance(outcome, SbplanError):
            raise outcome
    return Replayed(bound_ns, *counts, len(every))


def _check_configurations(
    forms: ClosedForms, certificate: BoundCertificate, configs: Sequence[PlanConfig], bound_ns: int
) -> tuple[int, int, int]:
    """How many configurations take no less than the bound by their work, by their layers, and by multipliers.

    Raises:
        CertificateError: of one it does not follow.
    """
    by_work = unsettled(forms, configs, range(len(configs)), bound_ns, layers=False)
    for at, cut in enumerate(certificate.layers):
        _take_layers(forms, cut, f"certificate, cut {at}")
    by_layers = unsettled(forms, configs, by_work, bound_ns, layers=True)
    for place in by_layers:
        _check_configuration(forms, certificate, configs[place], place, bound_ns)
    return len(configs) - len(by_work), len(by_work) - len(by_layers), len(by_layers)


def _dealt(cuts: Sequence[TemplateCut]) -> tuple[list[tuple[int, TemplateCut]], list[tuple[int, TemplateCut]]]:
    """Cuts with their places, dealt out to two: those of one template to one of them."""
    keys = {key: i for i, key in enumerate(dict.fromkeys(cut.template.key for cut in cuts))}
    placed = list(enumerate(cuts))
    one, other = ([pair for pair in placed if keys[pair[1].template.key] % 2 == half] for half in range(2))
    return one, other


def _check_templates(request: Request, cuts: Sequence[tuple[int, TemplateCut]]) -> None:
    """Replay the proofs of cuts, each with its place.

    Raises:
        CertificateError: one does not follow.
    """
    templates = _Templates(request)
    for at, cut in cuts:
        templates.check(cut, f"certificate, cut {at}")


def unsettled(
    forms: ClosedForms, configs: Sequence[PlanConfig], places: Sequence[int], bound_ns: int, *, layers: bool
) -> list[int]:
    """The places of configurations that closed forms alone leave below a bound.

    Args:
        forms: of the request.
        configs: all of the space.
        places: those that are in question.
        bound_ns: the bound.
        layers: whether what is known of layers counts; else least work and memory alone.
    """
    few = [configs[place] for place in places]
    bounds = forms.first_bounds_ns(few, exchanges=False) if layers else forms.work_bounds_ns(few)
    low = [place for place, least_ns in zip(places, bounds, strict=True) if least_ns < bound_ns]
    if not layers:
        return [place for place in low if all(forms.fitting([configs[place]]))]
    # What goes on beside layers takes longest to find: for what the rest leaves alone.
    bounds = forms.first_bounds_ns([configs[place] for place in low])
    return [place for place, least_ns in zip(low, bounds, strict=True) if least_ns < bound_ns]


@dataclass(slots=True)
class _Templates:
    """Templates of a request, each built where it is asked for."""

    request: Request
    known: dict[object, LayerTemplate | None] = field(default_factory=dict)

    def check(self, cut: TemplateCut, where: str) -> None:
        """Replay the proof of a cut.

        Raises:
            CertificateError: it does not follow.
        """
        template = self._of(cut)
        if template is None:
            return
        if cut.proof is None:
            raise CertificateError("it has no proof", where=where)
        linear = template.problem.linear
        if not linear.is_exact(cut.weighing):
            raise CertificateError("weights under which sums are not exact", where=where)
        try:
            prove(linear.at(cut.weighing), cut.proof, cut.least)
        except CertificateError as error:
            raise CertificateError(str(error), where=where) from None

    def _of(self, cut: TemplateCut) -> LayerTemplate | None:
        """None where not even signatures are left."""
        name = cut.template
        if name.key not in self.known:
            short = shortened(self.request.model)
            if short is None:
                raise CertificateError("templates of a model that has no layers alike")
            if len(self.known) >= MOST_TEMPLATES:
                self.known.clear()
            try:
                self.known[name.key] = LayerTemplate.named(name, self.request, short, UNLIMITED)
            except InfeasibleError:
                self.known[name.key] = None
        return self.known[name.key]


def _take_layers(forms: ClosedForms, cut: TemplateCut, where: str) -> None:
    """Let closed forms know what layers take on the axes of a cut."""
    config, layers = cut.template.config, forms.request.model.layers
    whole = np.array_equal(cut.weighing.weights, all_of_micro_batch(layers))
    if not (cut.template.tensor_axis and whole and config == plain(config)) or cut.least is None:
        raise CertificateError("not of all that a micro-batch takes", where=where)
    forms.layers_ns[on_axes(config)] = int(cut.inequality.least)


def _check_configuration(
    forms: ClosedForms, certificate: BoundCertificate, config: PlanConfig, place: int, bound_ns: int
) -> None:
    where = f"configuration {place} ({config})"
    if place in certificate.illegal:
        # What keeps more is laid out like what computes that again: nothing is legal in one way alone.
        cut = _cut(certificate.cuts, certificate.illegal[place], ways_of(forms.request, config), where)
        if cut.least is not None:
            raise CertificateError("said to have no legal layout, which does not follow", where=where)
        return
    if place not in certificate.multipliers:
        raise CertificateError("nothing says why it takes no less", where=where, expected=f"{bound_ns} ns at least")
    found = proved_of(forms, certificate.multipliers[place], certificate.cuts, config, bound_ns, where)
    if found < bound_ns:
        raise CertificateError("it may take less", where=where, got=f"{found} ns proved", expected=f"{bound_ns} ns")


def proved_of(
    forms: ClosedForms,
    multipliers: Multipliers,
    cuts: Sequence[TemplateCut],
    config: PlanConfig,
    bound_ns: int,
    where: str,
) -> int:
    """What multipliers prove of a configuration, in nanoseconds; of the bound in question, if that is less.

    Raises:
        CertificateError: they speak of what does not bound it.
    """
    ways, layers = ways_of(forms.request, config), forms.request.model.layers
    if not all(0 <= ns <= MOST_NS for path, _ in multipliers.paths for ns in path.times_ns):
        raise CertificateError("a path of no point", where=where, expected=f"times of 0 to {MOST_NS} ns")
    if len(multipliers.memory) != len(memory_rows(config, layers)):
        raise CertificateError("prices of other rows of memory", where=where, got=len(multipliers.memory))
    if len(multipliers.known) != len(ways):
        got, expected = f"{len(multipliers.known)} ways to treat layers", f"{len(ways)}"
        raise CertificateError("not of every way", where=where, got=got, expected=expected)
    bounded = [_priced(forms, known, cuts, way, where) for way, known in zip(ways, multipliers.known, strict=True)]
    limit_bytes, overlap = forms.request.memory_limit_bytes, forms.request.overlap_of(config)
    crossings = crossings_of(forms.request.cost.cluster, config)
    return proved_ns(multipliers, config, layers, limit_bytes, bounded, overlap, crossings, bound_ns)


def tempered_of(
    forms: ClosedForms, multipliers: Multipliers, cuts: Sequence[TemplateCut], config: PlanConfig
) -> Multipliers:
    """The same multipliers of a configuration, less what a linear program errs by."""
    ways, request = ways_of(forms.request, config), forms.request
    bounded = [_priced(forms, known, cuts, way, "") for way, known in zip(ways, multipliers.known, strict=True)]
    crossings = crossings_of(request.cost.cluster, config)
    return tempered(multipliers, config, request.model.layers, bounded, request.overlap_of(config), crossings)


def _priced(
    forms: ClosedForms, known: PricedForms, cuts: Sequence[TemplateCut], way: PlanConfig, where: str
) -> Bounded:
    """What is known of a way, with its prices."""
    (least, closed), priced = forms.of_way(way), list[tuple[Inequality, float]]()
    for at, price in known.forms:
        if not 0 <= at < len(closed):
            raise CertificateError("no such closed form", where=where, got=at)
        priced.append((closed[at], price))
    for at, price in known.cuts:
        cut = _cut(cuts, at, (way,), where)
        if cut.least is None:
            raise CertificateError("a cut without a least cost", where=where, got=at)
        priced.append((cut.said_of(way, forms), price))
    return least, priced


def _cut(cuts: Sequence[TemplateCut], at: int, ways: Sequence[PlanConfig], where: str) -> TemplateCut:
    """A cut that bounds one of the ways."""
    if not 0 <= at < len(cuts) or not any(cuts[at].bounds(way) for way in ways):
        raise CertificateError("a cut that does not bound it", where=where, got=at)
    return cuts[at]
