"""Tight decode: the cheapest of the choices that a bound cannot tell from the best.

Messages often end at the optimum itself, yet no choice is read off them: many nodes have several choices whose bound is
the least, and deciding node by node ends far off where they depend on each other. What takes any other choice costs
more, as the bound says. So the others are left out, and of the few that are left the best is found exactly: the core
problem of Balas and Zemel (1980, Operations Research 28), by elimination.
"""

from __future__ import annotations

from collections.abc import Mapping

from strategy.ilp.solve.certified_bound import CertifiedBound
from strategy.ilp.solve.core import Core, NoChoiceError
from strategy.ilp.solve.elimination import eliminate, plan_elimination
from strategy.ilp.solve.reductions import drop_forbidden, fold_single_choices

TIGHT_CELLS = 1 << 22
"""Of all joined tables: of more it is not worth it, where the whole may be eliminated as well."""


class TooManyLeftError(Exception):
    """More choices may cost so little than can be looked at. Caught within this package."""


def tight_decode(core: Core, found: CertifiedBound, below: int) -> tuple[Core, Mapping[int, int]] | None:
    """The cheapest choice of those that may cost less than `below`, by what their bounds say.

    Args:
        core: without memory.
        found: the bound, with what it proves of each choice.
        below: what is of interest.

    Returns:
        The core with the other choices left out, and the choice of its live nodes; None where nothing legal is left.

    Raises:
        TooManyLeftError: to be looked at.
    """
    left = core.copy()
    try:
        for node, few in found.choices_below(below).items():
            left.keep_choices(node, few)
        drop_forbidden(left)
        fold_single_choices(left)
    except NoChoiceError:
        return None
    buckets = plan_elimination(left, max_cells=TIGHT_CELLS)
    if buckets is None:
        raise TooManyLeftError
    return left, eliminate(buckets, left.costs).picks
