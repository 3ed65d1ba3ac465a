"""Second box: what is asked for layouts beside the box that promises most.

It is of the other kind, with a pipeline or without, as long as nothing of that kind is known to fit; else, where the
layers of the first are not known yet, it is the box that promises most of those whose layers are: of very many, there
is always one more that promises much as long as nothing is known of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from strategy.search.box import Box
from strategy.search.prospects import Prospects

UNLIKE = 1.15
"""By this factor it may promise less than the first if it is of the other kind: what promises are worth is not the
same for both."""
TOLD = 2
"""Level from which on the layers of a box are known."""


def second_box(prospects: Prospects, first: Box, likely: Sequence[Box]) -> Box | None:
    """Of boxes that may be the best; None where any that promises most will do."""
    found = _unlike(prospects, first, likely)
    if found is not None or first.level:
        return found
    return prospects.most_promising([box for box in likely if box.level >= TOLD])


def _unlike(prospects: Prospects, first: Box, likely: Sequence[Box]) -> Box | None:
    fitting, is_piped = prospects.known.fitting(prospects.request), first.config.pp > 1
    if any((one.found.config.pp > 1) is not is_piped for one in fitting):
        return None
    found = prospects.most_promising([box for box in likely if (box.config.pp > 1) is not is_piped])
    near_ns = min(prospects.best_ns, UNLIKE * first.promise[1])
    return found if found is not None and found.promise[1] < near_ns else None
