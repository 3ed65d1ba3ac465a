"""Mixed proposals: where the fast one of two ways to lay out layers does not fit and the light one is slow, both.

    share of layers laid out lightly    0      1/8     2/8     3/8    ...     1
    step                             least  ------------------------------>  most
    fits                               no      no      no      yes    ...    yes
                                                               what is proposed

Bounds over all layouts of a box are such mixes where memory is scarce (`outer_approximation`). They are, too, where one
way keeps links busy beside layers and the other devices: a mix keeps both busy, though each may fit. What that gains by
the objective is often lost again where these wait for each other, so that such mixes come last.
"""

from __future__ import annotations

from fractions import Fraction

from strategy.layout.config import PlanConfig
from strategy.layout.step_times import steps_ns
from strategy.search.search_state import LayoutProposal, SearchState
from strategy.search.template.answers import Proposed
from strategy.search.template.layer_mix import LayerMix, mixes_at, most_between
from strategy.search.template.stages import between_places, made_up, times_made_up
from strategy.space.request import Request

MOST_SHARES = 32
"""Of so many shares one is chosen at most."""


def mixed_proposal(
    request: Request,
    known: SearchState,
    config: PlanConfig,
    one: Proposed,
    other: Proposed,
    most_ns: float,
    *,
    balances: bool = False,
) -> LayoutProposal | None:
    """The fastest mix of two ways that is likely to fit; None where one of them alone does as well, or none does.

    Args:
        request: what is searched.
        known: what plans have shown of memory.
        config: the degrees of both.
        one: what the first and the last part are laid out as, and some of the layers between.
        other: what the other layers are laid out as.
        most_ns: what takes no less is of no interest.
        balances: whether the fast one may fit, too.
    """
    layers = request.model.layers
    count = min(most_between(config, layers), MOST_SHARES)
    if count < 2 or not one.seam.meets(other.seam, alike=one.keeps == other.keeps):
        return None
    overlap, between_ns = request.overlap_of(config), between_places(one.messages, config)
    each = (one.parts.first, one.parts.middle, other.parts.middle, one.parts.last)
    shares = mixes_at(config, layers, count)

    def of(numerator: int) -> LayoutProposal:
        found = made_up(each, shares[numerator], config, between_ns, overlap, one.tied)
        mix = LayerMix(other.signatures, Fraction(numerator, count), other.keeps)
        return LayoutProposal(found, one.signatures, one.deep_ops, one.keeps, mix)

    def fits(numerator: int) -> bool:
        return known.fits(request, of(numerator))

    times = times_made_up(each, shares, config, between_ns, overlap, one.tied)
    takes_ns = steps_ns(config.schedule, config.num_micro_batches, times)
    fast, light = sorted((0, count), key=lambda numerator: takes_ns[numerator])
    fastest = int(takes_ns.argmin())
    if takes_ns[fastest] >= most_ns:
        return None
    if balances and fastest not in (0, count) and fits(fastest):
        return of(fastest)
    if fits(fast) or not fits(light):
        return None
    inside, outside = light, fast  # what a stage holds is linear in the share
    while abs(outside - inside) > 1:
        middle = (outside + inside) // 2
        inside, outside = (middle, outside) if fits(middle) else (inside, middle)
    return None if inside == light or takes_ns[inside] >= most_ns else of(inside)
