"""Mixed proposals: where the fast one of two ways to lay out layers does not fit and the light one is slow, both.

    share of layers laid out lightly    0      1/8     2/8     3/8    ...     1
    step                             least  ------------------------------>  most
    fits                               no      no      no      yes    ...    yes
                                                               what is proposed

Bounds over all layouts of a box are such mixes where memory is scarce (`outer_approximation`).
"""

from __future__ import annotations

from fractions import Fraction

from strategy.layout.config import PlanConfig
from strategy.search.search_state import LayoutProposal, SearchState
from strategy.search.template.answers import Proposed
from strategy.search.template.layer_mix import LayerMix, mixed_at, most_between
from strategy.search.template.stages import between_places, made_up
from strategy.space.request import Request

MOST_SHARES = 32
"""Of so many shares one is chosen at most."""


def mixed_proposal(
    request: Request, known: SearchState, config: PlanConfig, one: Proposed, other: Proposed
) -> LayoutProposal | None:
    """The fastest mix of two ways that is likely to fit; None where one of them alone does as well, or none does.

    Args:
        request: what is searched.
        known: what plans have shown of memory.
        config: the degrees of both.
        one: what the first and the last part are laid out as, and some of the layers between.
        other: what the other layers are laid out as.
    """
    if not one.seam.meets(other.seam, alike=one.keeps == other.keeps):
        return None
    overlap, between_ns = request.overlap_of(config), between_places(one.messages, config)
    each = (one.parts.first, one.parts.middle, other.parts.middle, one.parts.last)
    count = min(most_between(config, request.model.layers), MOST_SHARES)

    def of(numerator: int) -> LayoutProposal:
        share = Fraction(numerator, count)
        where = mixed_at(config, request.model.layers, share)
        found = made_up(each, where, config, between_ns, overlap, one.tied)
        return LayoutProposal(
            found, one.signatures, one.deep_ops, one.keeps, LayerMix(other.signatures, share, other.keeps)
        )

    if count < 2:
        return None
    ends = of(0), of(count)
    fast, light = sorted((0, count), key=lambda numerator: ends[numerator > 0].found.step_ns)
    if known.fits(request, ends[fast > 0]) or not known.fits(request, ends[light > 0]):
        return None
    best = None
    while abs(fast - light) > 1:
        middle = (fast + light) // 2
        found = of(middle)
        if known.fits(request, found):
            light, best = middle, found
        else:
            fast = middle
    return best
