"""Branch and bound over cases, best bound first, until nothing that is left can be cheaper than what is known.

A case is tightened in turns: reductions; where elimination is narrow enough, the exact minimum at the best prices of
memory; otherwise, or where that leaves a gap, prices and messages; then whatever cannot beat the incumbent is fixed
away. What stays open is branched on.
"""

from __future__ import annotations

import heapq
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from strategy.ilp.solve.branch_node import Case
from strategy.ilp.solve.certified_bound import Stated, state_constant, state_elimination
from strategy.ilp.solve.core import Core, IntArray, NoChoiceError
from strategy.ilp.solve.cutting_planes import raise_prices
from strategy.ilp.solve.elimination import Bucket, plan_elimination
from strategy.ilp.solve.joins import WIDTHS, find_joins
from strategy.ilp.solve.progress import Progress
from strategy.ilp.solve.reductions import reduce_core

if TYPE_CHECKING:
    from strategy.ilp.solve.primal_dual import Chase
    from strategy.ilp.solve.relaxation import Place, Relaxation

# Cells of all joined tables of one elimination, at the root and below it.
ELIMINATION_CELLS = 1 << 24
PART_CELLS = 1 << 22
# The ascent of the root and of other cases ends when so many steps have gained less than this part of the gap.
PATIENT, BRIEF = (200, 0.01), (60, 0.03)
# Without an incumbent the gap counts as this part of the bound.
ASSUMED_GAP = 0.05
# A warm ascent first aims at this part of the gap.
WARM_AIM = 0.25
# What a bound in floats may be above the exact one.
CLOSE = 1e-3
# Cells of all tables with wide joins, at most: messages start anew among them.
WIDE_CELLS = 1 << 21
# Share of the choices that fixing must remove to be worth another turn.
WORTHWHILE = 0.04


class Search:
    """The tree of cases."""

    def __init__(self, core: Core, rank: IntArray, progress: Progress) -> None:
        self.rank = rank
        self.progress = progress
        self.most = core.most
        self.root = Case(core, core.constant, np.zeros(core.room.size))
        self.open: list[tuple[int, int, Case]] = []
        self.count = 0
        self.beside: Chase | None = None

    def run(self) -> None:
        """Works until everything is closed.

        Raises:
            OutOfTimeError: the time or the work is used up; the tree is whole.
        """
        with ThreadPoolExecutor(1) as self.pool:
            self._tighten(self.root, PATIENT)
            self._push(self.root)
            while self.open:
                bound, _, case = heapq.heappop(self.open)
                if self._hopeless(bound):
                    return
                self.progress.raise_bound(bound, "branching")
                self._expand(case)

    def _hopeless(self, bound: int | None) -> bool:
        """Whether nothing of interest can be left: nothing cheaper than what is known, or nothing legal at all."""
        below = self.progress.below
        return bound is None or bound > self.most or (below is not None and bound >= below)

    def _push(self, case: Case) -> None:
        if case.bound is None or self._hopeless(case.bound):
            case.close()
            return
        self.count += 1
        heapq.heappush(self.open, (case.bound, -self.count, case))

    def _expand(self, case: Case) -> None:
        core = case.core
        if core is None:
            return
        for kept in case.choices:
            part = core.branch(case.node, kept)
            case.parts.append(Case(part, part.constant, case.prices, case.width))
        case.close()
        for open_part in case.parts:
            self._tighten(open_part, BRIEF)
            self._push(open_part)

    def _tighten(self, case: Case, patience: tuple[int, float]) -> None:
        """Raises a case's bound until it is closed or should be branched on."""
        core = case.core
        if core is None:
            return
        try:
            while not self._turn(case, core, patience):
                pass
        except NoChoiceError:
            case.empty()

    def _turn(self, case: Case, core: Core, patience: tuple[int, float]) -> bool:
        """One turn; says whether it was the last."""
        mark = len(case.steps)
        reduce_core(core, deadline_s=self.progress.deadline_s)
        case.follow_rows(mark)
        case.take(state_constant(core))
        if self._hopeless(case.bound):
            return True
        self.progress.spend(0)
        if not core.costs:
            self.progress.offer_picks(core, {})
            return True
        buckets = plan_elimination(core, max_cells=ELIMINATION_CELLS if case is self.root else PART_CELLS)
        if buckets is not None:
            stated = self._eliminate(case, core, buckets)
            if self._hopeless(case.bound) or not core.room.size:
                return True
            if self._fix(core, stated):
                return False
        return self._pass_messages(case, core, patience)

    def _eliminate(self, case: Case, core: Core, buckets: tuple[Bucket, ...]) -> Stated:
        """The exact bound of the best prices of memory; the choices met on the way are repaired and offered."""
        from strategy.ilp.solve.relaxation import place_of

        cells = sum(bucket.table.size for bucket in buckets)
        place: Place | None = None

        def offer(picks: dict[int, int], bound: int) -> int | None:
            nonlocal place
            if not self._hopeless(bound):
                if core.room.size and (core.load(picks) > core.room).any():
                    place = place or place_of(core, self.rank)
                    self._chase().repair(place, picks, abs(bound))
                else:
                    self.progress.offer_picks(core, picks)
            self.progress.spend(2 * cells)
            return self.progress.below

        if core.room.size:
            case.prices = raise_prices(core, buckets, case.prices, offer=offer)
        stated = state_elimination(core, buckets, case.prices)
        self._take(case, stated, "elimination")
        if stated.picks is not None:
            offer(stated.picks, stated.lower_bound)
        return stated

    def _pass_messages(self, case: Case, core: Core, patience: tuple[int, float]) -> bool:
        """Raises prices and messages; then fixes, or says which node to branch on, which is the last of this turn."""
        from strategy.ilp.solve.dual_ascent import start_ascent
        from strategy.ilp.solve.message_bound import state_messages
        from strategy.ilp.solve.primal_dual import Patience
        from strategy.ilp.solve.probing import branch_on
        from strategy.ilp.solve.relaxation import relax

        place = relax(core, self.rank, case.width)
        wider = case.width + 1 < len(WIDTHS) and self._worth_widening(place, case.width + 1)
        aim = WARM_AIM * self._gap(float(case.bound or 0)) if case.prices.any() else None
        ascent = start_ascent(place.inner.flat, core.constant, case.prices, aim)

        def state() -> Stated:
            stated = state_messages(place, ascent)
            self._take(case, stated, "messages")
            return stated

        def tell() -> None:
            if case is self.root:
                state()

        def left(bound: float) -> float:
            if self._hopeless(math.ceil(bound - CLOSE)):
                state()
            return 0.0 if self._hopeless(case.bound) else self._gap(bound)

        try:
            self._chase().ascend(place, ascent, Patience(*(BRIEF if wider else patience)), gap=left, tell=tell)
        finally:
            stated = state()
        case.prices = ascent.best_prices
        if self._hopeless(case.bound):
            return True
        if self._fix(core, stated):
            return False
        if wider:
            case.width += 1
            return False
        gap = self._gap(ascent.bound + core.constant)
        case.node, case.choices = branch_on(place.inner, ascent, stated, gap, self.progress.spend)
        return True

    def _worth_widening(self, place: Relaxation, width: int) -> bool:
        """Whether joins of that width are more than there are, and quickly read."""
        joins = find_joins(place.whole.core, width)
        cells = place.whole.flat.table.size + sum(join.table.size for join in joins)
        return len(joins) > len(place.joins) and cells <= WIDE_CELLS

    def _take(self, case: Case, stated: Stated, method: str) -> None:
        case.take(stated)
        if case is self.root and case.bound is not None:
            self.progress.raise_bound(case.bound, method)

    def _fix(self, core: Core, stated: Stated) -> bool:
        """Drops what cannot be cheaper than the best known, if that is worth another turn."""
        below = self.progress.below
        if below is None:
            return False
        kept = stated.kept(below)
        dropped = sum(core.costs[node].size - few.size for node, few in kept.items())
        if dropped <= WORTHWHILE * sum(cost.size for cost in core.costs.values()):
            return False
        core.fix(stated.proof, below, kept)
        return True

    def _gap(self, bound: float) -> float:
        below = self.progress.below
        return max(below - bound, 1.0) if below is not None else max(ASSUMED_GAP * abs(bound), 1.0)

    def _chase(self) -> Chase:
        """What needs compiled loops, once it is needed."""
        from strategy.ilp.solve.primal_dual import Chase

        if self.beside is None:
            self.beside = Chase(self.progress, self.pool)
        return self.beside
