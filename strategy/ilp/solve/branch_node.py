"""Branch-and-bound node: a part of all choices, what is proved of it, and the derivation."""

from __future__ import annotations

from strategy.ilp.certificate.proof import Branch, Empty, End, KeepRows, Proof, Step
from strategy.ilp.solve.certified_bound import CertifiedBound, certify_constant
from strategy.ilp.solve.core import Core, FloatArray, IntArray


class BranchNode:
    """A node of the tree: its core, and the best bound that its steps lead to; None once nothing of interest is left.

    `end` proves `bound` after the first `num_steps` of the steps. An open node knows the decision to branch on, which
    is a node of the problem (`branching_node`), and the lists of its choices, one per child (`branching_choices`).
    `prices` (R,) are those of its memory rows, `join_width` is that of its joins.
    """

    def __init__(self, core: Core, bound: int, prices: FloatArray, join_width: int = 0) -> None:
        self.core: Core | None = core
        self.steps: list[Step] = core.steps
        self.bound: int | None = bound
        self.prices = prices
        self.join_width = join_width
        self.num_steps = len(core.steps)
        self.end: End = certify_constant(core).proof
        self.branching_node = -1
        self.branching_choices: tuple[IntArray, ...] = ()
        self.children: list[BranchNode] = []

    def raise_bound(self, found: CertifiedBound) -> None:
        """Takes a bound of the core as it is now, if it is better."""
        if self.bound is None or found.lower_bound >= self.bound or isinstance(self.end, Empty):
            self.bound, self.end, self.num_steps = found.lower_bound, found.proof, len(self.steps)

    def close(self) -> None:
        """Forgets the core: the proof is all that is still needed."""
        self.core = None

    def close_as_empty(self) -> None:
        """Closes the node, in which nothing is legal or of interest."""
        self.bound, self.end, self.num_steps = None, Empty(), len(self.steps)
        self.close()

    def keep_prices(self, mark: int) -> None:
        """Restricts the prices to the memory rows that the steps since `mark` have kept."""
        for step in self.steps[mark:]:
            if isinstance(step, KeepRows):
                self.prices = self.prices[step.rows]

    def proved_bound(self) -> int | None:
        """The least bound of the children, or the node's own where that is better; None is more than any number."""
        if not self.children:
            return self.bound
        least = self._least_of_children()
        return None if self.bound is None or least is None else max(self.bound, least)

    def proof(self) -> Proof:
        """The derivation of `proved_bound`."""
        least = self._least_of_children()
        if not self.children or self.bound is None or (least is not None and least <= self.bound):
            return Proof(tuple(self.steps[: self.num_steps]), self.end)
        children = tuple(child.proof() for child in self.children)
        return Proof(tuple(self.steps), Branch(self.branching_node, self.branching_choices, children))

    def _least_of_children(self) -> int | None:
        bounds = [child.proved_bound() for child in self.children]
        return min((bound for bound in bounds if bound is not None), default=None)
