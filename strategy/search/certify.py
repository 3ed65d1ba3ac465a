"""Certify: the certificate of a search's bound, from what its boxes were bounded by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from strategy.base.beside import beside, spare_processors
from strategy.base.errors import SbplanError
from strategy.bounds.certificate import BoundCertificate, pinned
from strategy.bounds.closed_forms import ClosedForms, on_axes
from strategy.bounds.multipliers import Multipliers, PricedForms
from strategy.bounds.replay import proved_of, tempered_of, unsettled
from strategy.bounds.template_cut import TemplateCut
from strategy.layout.config import PlanConfig
from strategy.search.box import Box
from strategy.search.shared_cuts import SharedCuts
from strategy.search.template.outer_approximation import DualPrices

WORTH_SHARING = 64
"""From so many configurations on, all processors replay what was proved of them."""


def certified(
    cuts: SharedCuts, boxes: Sequence[Box], listed: Sequence[PlanConfig], bound_ns: int
) -> tuple[BoundCertificate | None, int]:
    """(certificate, the bound that it proves): the bound asked for, or a little less where rounding takes from it.

    None where something is pinned that certificates do not speak of.

    Args:
        cuts: of templates.
        boxes: of the whole space.
        listed: its configurations, in order.
        bound_ns: that of the boxes, or less.
    """
    pins, configs, forms = cuts.request.pins, listed, cuts.forms
    try:
        pinned(pins)
    except ValueError:
        return None, bound_ns
    low = unsettled(forms, configs, range(len(configs)), bound_ns, layers=False)
    axes = dict.fromkeys(on_axes(configs[place]) for place in low)
    layers = tuple(cuts.of_layers[key] for key in axes if key in cuts.of_layers)
    box_of = {config: box for box in boxes for config in box.configs}
    used: dict[TemplateCut, None] = {}
    found, illegal, proved = dict[int, tuple[PlanConfig, DualPrices]](), dict[int, TemplateCut](), bound_ns
    asked = [place for place in low if not _is_settled(box_of[configs[place]], configs[place], bound_ns)]
    for place in unsettled(forms, configs, asked, bound_ns, layers=True):
        config = configs[place]
        box = box_of[config]
        if box.nothing_legal is not None:
            used[box.nothing_legal] = None
            illegal[place] = box.nothing_legal
            continue
        prices = box.prices_of(config)
        if prices is None:
            (proved,) = (min(proved, one) for one in forms.first_bounds_ns([config]))
            continue
        found[place] = config, prices
        used |= {why: None for why in prices.reasons if isinstance(why, TemplateCut)}
    every = sorted(used, key=lambda cut: repr(cut.template.key))
    at = {cut: i for i, cut in enumerate(every)}
    multipliers = {place: _numbered(prices, at) for place, (_, prices) in found.items()}

    def all_proved(among: Sequence[int]) -> list[tuple[int, int, Multipliers]]:
        """Some places, what is proved of each, and by which multipliers."""
        return [(place, *_proved(forms, multipliers[place], every, found[place][0], bound_ns)) for place in among]

    parts = 1 + spare_processors() if len(found) >= WORTH_SHARING else 1
    for each in beside([partial(all_proved, tuple(found)[part::parts]) for part in range(parts)]):
        if isinstance(each, SbplanError):
            raise each
        for place, least, best in each:
            proved, multipliers[place] = min(proved, least), best
    closed = {place: at[cut] for place, cut in illegal.items()}
    return BoundCertificate(pins, len(configs), layers, tuple(every), multipliers, closed), proved


def _proved(
    forms: ClosedForms, multipliers: Multipliers, cuts: Sequence[TemplateCut], config: PlanConfig, bound_ns: int
) -> tuple[int, Multipliers]:
    """What multipliers prove of a configuration, or the same tempered where these prove more; and which."""
    proved = proved_of(forms, multipliers, cuts, config, bound_ns, "")
    if proved < bound_ns:
        other = tempered_of(forms, multipliers, cuts, config)
        more = proved_of(forms, other, cuts, config, bound_ns, "")
        if more > proved:
            return more, other
    return proved, multipliers


def _is_settled(box: Box, config: PlanConfig, bound_ns: int) -> bool:
    """Whether closed forms alone have shown, when the box was looked at, that a configuration takes no less."""
    is_closed = box.nothing_legal is None and box.prices_of(config) is None
    return is_closed and box.bounds_ns[box.configs.index(config)] >= bound_ns


def _numbered(prices: DualPrices, at: Mapping[TemplateCut, int]) -> Multipliers:
    """DualPrices, cuts by their places."""
    known = []
    for of_way in prices.known:
        forms = tuple((why, price) for why, price in of_way if isinstance(why, int))
        known.append(
            PricedForms(forms, tuple((at[why], price) for why, price in of_way if isinstance(why, TemplateCut)))
        )
    return Multipliers(prices.paths, prices.memory, tuple(known))
