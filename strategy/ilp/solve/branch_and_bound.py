"""Branch and bound: best bound first, until no open node can hold anything cheaper than the incumbent.

The bound of a node is tightened in rounds: reductions; where elimination is narrow enough, the exact minimum at the
best prices of memory; otherwise, or where that leaves a gap, prices and TRW-S messages; then every choice whose bound
meets the incumbent is fixed away (reduced-cost fixing). What stays open is branched on.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from strategy.ilp.solve.branch_node import BranchNode
from strategy.ilp.solve.certified_bound import CertifiedBound, certify_constant, certify_elimination
from strategy.ilp.solve.core import Core, IntArray, NoChoiceError
from strategy.ilp.solve.cutting_planes import raise_prices_by_cuts
from strategy.ilp.solve.elimination import Bucket, plan_elimination
from strategy.ilp.solve.joins import WIDTHS, find_joins
from strategy.ilp.solve.progress import Progress
from strategy.ilp.solve.reductions import drop_forbidden, reduce_core
from strategy.ilp.solve.tight_decode import TooManyLeftError, tight_decode

if TYPE_CHECKING:
    from strategy.ilp.solve.dual_ascent import DualAscent
    from strategy.ilp.solve.primal_dual import PrimalDual
    from strategy.ilp.solve.relaxation import PackedCore, Relaxation

# Cells of all joined tables of one elimination, at the root and below it.
ROOT_ELIMINATION_CELLS = 1 << 24
ELIMINATION_CELLS = 1 << 22
# The ascent of the root and of other nodes ends when so many steps have gained less than this part of the gap.
ROOT_PATIENCE, PATIENCE = (200, 0.01), (60, 0.03)
# Rounds of so many steps of messages on a core as it is, where a gap is allowed.
FIRST_ROUNDS, FIRST_STEPS = 12, 8
# They end when one gains no more than this part of the gap.
STALLED = 0.1
# Parts of the gap by which choices that are decoded may cost more than the bound, one after the other.
NEARLY_TIGHT = (1e-3, 3e-2, 1.0)
# Without an incumbent the gap counts as this part of the bound.
ASSUMED_GAP = 0.05
# An ascent from known prices first aims at this part of the gap.
WARM_AIM = 0.25
# What a bound in floats may be above the exact one.
ROUNDING = 1e-3
# Cells of all tables with wide joins, at most: messages start anew among them.
WIDE_CELLS = 1 << 21
# Share of the choices that fixing must remove to be worth another round.
WORTHWHILE = 0.04


class BranchAndBound:
    """The tree: its root, and the open nodes by bound."""

    def __init__(
        self, core: Core, rank: IntArray, progress: Progress, gap: float = 0.0, enough: int | None = None
    ) -> None:
        self.rank = rank
        self.gap = gap
        self.enough = enough
        self.progress = progress
        self.cost_ceiling = core.cost_ceiling
        self.root = BranchNode(core, core.constant, np.zeros(core.room.size))
        self.open: list[tuple[int, int, BranchNode]] = []
        self.num_pushed = 0
        self.primal_dual: PrimalDual | None = None

    def run(self) -> None:
        """Works until every node is closed.

        Raises:
            OutOfTimeError: the budget is used up; the tree is whole.
        """
        with ThreadPoolExecutor(1) as self.pool:
            if self.gap:
                self._pass_messages(self.root)
            self._tighten(self.root, ROOT_PATIENCE)
            self._push(self.root)
            while self.open:
                bound, _, node = heapq.heappop(self.open)
                if self._is_fathomed(bound):
                    return
                self.progress.raise_bound(bound, "branching")
                self._branch(node)

    def _is_fathomed(self, bound: int | None) -> bool:
        """Whether nothing of interest can be left: nothing cheaper than what is known, or nothing legal at all."""
        upper_bound = self.progress.upper_bound
        if bound is None or bound > self.cost_ceiling:
            return True
        if upper_bound is None:
            return False
        is_enough = self.enough is not None and bound >= self.enough
        return is_enough or bound >= upper_bound - int(self.gap * abs(upper_bound))

    def _push(self, node: BranchNode) -> None:
        if node.bound is None or self._is_fathomed(node.bound):
            node.close()
            return
        self.num_pushed += 1
        heapq.heappush(self.open, (node.bound, -self.num_pushed, node))

    def _branch(self, node: BranchNode) -> None:
        core = node.core
        if core is None:
            return
        for kept in node.branching_choices:
            part = core.branch(node.branching_node, kept)
            node.children.append(BranchNode(part, part.constant, node.prices, node.join_width))
        node.close()
        for child in node.children:
            self._tighten(child, PATIENCE)
            self._push(child)

    def _tighten(self, node: BranchNode, patience: tuple[int, float]) -> None:
        """Raises a node's bound until it is closed or should be branched on."""
        core = node.core
        if core is None or self._is_fathomed(node.bound):
            return
        try:
            while not self._tighten_once(node, core, patience):
                pass
        except NoChoiceError:
            node.close_as_empty()

    def _tighten_once(self, node: BranchNode, core: Core, patience: tuple[int, float]) -> bool:
        """One round; says whether it was the last."""
        mark = len(node.steps)
        reduce_core(core)
        node.keep_prices(mark)
        node.raise_bound(certify_constant(core))
        if self._is_fathomed(node.bound):
            return True
        self.progress.spend(0)
        if not core.costs:
            self.progress.offer_picks(core, {})
            return True
        max_cells = ROOT_ELIMINATION_CELLS if node is self.root else ELIMINATION_CELLS
        buckets = plan_elimination(core, max_cells=max_cells)
        if buckets is not None:
            found = self._eliminate(node, core, buckets)
            if self._is_fathomed(node.bound) or not core.room.size:
                return True
            if self._fix_choices(core, found):
                return False
        return self._ascend(node, core, patience)

    def _eliminate(self, node: BranchNode, core: Core, buckets: tuple[Bucket, ...]) -> CertifiedBound:
        """The exact bound at the best prices of memory; the choices met on the way are repaired and offered."""
        from strategy.ilp.solve.relaxation import pack_core

        cells = sum(bucket.table.size for bucket in buckets)
        packed: PackedCore | None = None

        def offer(picks: Mapping[int, int], bound: int) -> int | None:
            nonlocal packed
            if not self._is_fathomed(bound):
                if core.room.size and (core.load(picks) > core.room).any():
                    packed = packed or pack_core(core, self.rank)
                    self._primal_dual().repair(packed, picks, abs(bound))
                else:
                    self.progress.offer_picks(core, picks)
            self.progress.spend(2 * cells)
            return self.progress.upper_bound

        if core.room.size:
            node.prices = raise_prices_by_cuts(core, buckets, node.prices, offer=offer)
        found = certify_elimination(core, buckets, node.prices)
        self._raise_bound(node, found, "elimination")
        if found.picks is not None:
            offer(found.picks, found.lower_bound)
        return found

    def _pass_messages(self, node: BranchNode) -> None:
        """Messages on the core as it is: where a gap is allowed, they often close the node before it is reduced."""
        from strategy.ilp.solve.dual_ascent import start_dual_ascent
        from strategy.ilp.solve.message_bound import certify_messages
        from strategy.ilp.solve.primal import PrimalHeuristic
        from strategy.ilp.solve.relaxation import relax

        core = node.core
        if core is None or not core.costs:
            return
        try:
            drop_forbidden(core)
        except NoChoiceError:
            node.close_as_empty()
            return
        relaxation = relax(core, self.rank)
        ascent = start_dual_ascent(relaxation.relaxed.arrays, core.constant, node.prices)
        local = PrimalHeuristic(relaxation.full.arrays)
        bound, before, steps = -math.inf, -math.inf, 0
        for _ in range(FIRST_ROUNDS):
            ascent.ascend(FIRST_STEPS)
            steps += FIRST_STEPS
            before, bound = bound, ascent.bound + core.constant
            local.consider(relaxation.complete(ascent.decoded), ascent.best_prices, abs(bound))
            if local.picks is not None:
                self.progress.offer_picks(core, dict(zip(relaxation.full.nodes, local.picks.tolist(), strict=True)))
            if self._is_fathomed(math.ceil(bound - ROUNDING)) or bound - before <= STALLED * self.gap * abs(bound):
                break
        found = certify_messages(relaxation, ascent)
        self._raise_bound(node, found, "messages")
        if not core.room.size:
            self._decode(core, node, found)
        if self.progress.cost is not None and not self._is_fathomed(node.bound):
            self.progress.spend(steps * ascent.step_entries)

    def _decode(self, core: Core, node: BranchNode, found: CertifiedBound) -> None:
        """What costs least among the choices that a bound cannot tell from the best: first those nearest to it."""
        allowed = math.ceil(self.gap * abs(found.lower_bound))
        for part in NEARLY_TIGHT:
            if self._is_fathomed(node.bound):
                break
            try:
                decoded = tight_decode(core, found, found.lower_bound + math.ceil(part * allowed) + 1)
            except TooManyLeftError:
                break
            if decoded is not None:
                self.progress.offer_picks(*decoded)

    def _ascend(self, node: BranchNode, core: Core, patience: tuple[int, float]) -> bool:
        """Raises prices and messages; then fixes choices, or says what to branch on, which ends the last round."""
        from strategy.ilp.solve.probing import choose_branching
        from strategy.ilp.solve.relaxation import relax

        relaxation = relax(core, self.rank, node.join_width)
        wider = node.join_width + 1 < len(WIDTHS) and self._is_worth_widening(relaxation, node.join_width + 1)
        found, ascent = self._raise_messages(node, relaxation, PATIENCE if wider else patience)
        if self._is_fathomed(node.bound):
            return True
        if self._fix_choices(core, found):
            return False
        if wider:
            node.join_width += 1
            return False
        gap = self._gap(ascent.bound + core.constant)
        node.branching_node, node.branching_choices = choose_branching(
            relaxation.relaxed, ascent, found, gap, self.progress.spend
        )
        return True

    def _raise_messages(
        self, node: BranchNode, relaxation: Relaxation, patience: tuple[int, float]
    ) -> tuple[CertifiedBound, DualAscent]:
        """(what prices and messages prove, where they ended), raised until they stall or close the node."""
        from strategy.ilp.solve.dual_ascent import start_dual_ascent
        from strategy.ilp.solve.message_bound import certify_messages
        from strategy.ilp.solve.primal_dual import Patience

        core = relaxation.full.core
        aim = WARM_AIM * self._gap(float(node.bound or 0)) if node.prices.any() else None
        ascent = start_dual_ascent(relaxation.relaxed.arrays, core.constant, node.prices, aim)

        def certify() -> CertifiedBound:
            found = certify_messages(relaxation, ascent)
            self._raise_bound(node, found, "messages")
            return found

        def tell() -> None:
            if node is self.root:
                certify()

        def gap_at(bound: float) -> float:
            if self._is_fathomed(math.ceil(bound - ROUNDING)):
                certify()
            return 0.0 if self._is_fathomed(node.bound) else self._gap(bound)

        try:
            self._primal_dual().run(relaxation, ascent, Patience(*patience), gap_at=gap_at, tell=tell)
        finally:
            found = certify()
        node.prices = ascent.best_prices
        return found, ascent

    def _is_worth_widening(self, relaxation: Relaxation, join_width: int) -> bool:
        """Whether joins of that width are more than there are, and quickly read."""
        joins = find_joins(relaxation.full.core, join_width)
        cells = relaxation.full.arrays.table.size + sum(join.table.size for join in joins)
        return len(joins) > len(relaxation.joins) and cells <= WIDE_CELLS

    def _raise_bound(self, node: BranchNode, found: CertifiedBound, method: str) -> None:
        node.raise_bound(found)
        if node is self.root and node.bound is not None:
            self.progress.raise_bound(node.bound, method)

    def _fix_choices(self, core: Core, found: CertifiedBound) -> bool:
        """Drops what cannot be cheaper than the incumbent, if that is worth another round."""
        upper_bound = self.progress.upper_bound
        if upper_bound is None:
            return False
        kept = found.choices_below(upper_bound)
        dropped = sum(core.costs[node].size - few.size for node, few in kept.items())
        if dropped <= WORTHWHILE * sum(cost.size for cost in core.costs.values()):
            return False
        core.fix_choices(found.proof, upper_bound, kept)
        return True

    def _gap(self, bound: float) -> float:
        upper_bound = self.progress.upper_bound
        return max(upper_bound - bound, 1.0) if upper_bound is not None else max(ASSUMED_GAP * abs(bound), 1.0)

    def _primal_dual(self) -> PrimalDual:
        """What needs compiled loops, made once it is needed."""
        from strategy.ilp.solve.primal_dual import PrimalDual

        if self.primal_dual is None:
            self.primal_dual = PrimalDual(self.progress, self.pool)
        return self.primal_dual
