"""A case: a part of all choices, what is proved of it, and how."""

from __future__ import annotations

from strategy.ilp.certificate.proof import Branch, Empty, End, KeepRows, Proof, Step
from strategy.ilp.solve.certified_bound import Stated, state_constant
from strategy.ilp.solve.core import Core, FloatArray, IntArray


class Case:
    """A core with the best bound that its steps lead to; `bound` is None once nothing of interest is left.

    `reached` are the steps before the end that proves `bound`. An open case knows the node to branch on and the lists
    of its choices, one per part. `prices` are those of its rows, `width` is that of its joins.
    """

    def __init__(self, core: Core, bound: int, prices: FloatArray, width: int = 0) -> None:
        self.core: Core | None = core
        self.steps: list[Step] = core.steps
        self.bound: int | None = bound
        self.prices = prices
        self.width = width
        self.reached = len(core.steps)
        self.end: End = state_constant(core).proof
        self.node = -1
        self.choices: tuple[IntArray, ...] = ()
        self.parts: list[Case] = []

    def take(self, stated: Stated) -> None:
        """Takes a bound of the core as it is now, if it is better."""
        if self.bound is None or stated.lower_bound >= self.bound or isinstance(self.end, Empty):
            self.bound, self.end, self.reached = stated.lower_bound, stated.proof, len(self.steps)

    def close(self) -> None:
        """Forgets the core: its proof is all that is still needed."""
        self.core = None

    def empty(self) -> None:
        """Nothing of interest is left."""
        self.bound, self.end, self.reached = None, Empty(), len(self.steps)
        self.close()

    def follow_rows(self, mark: int) -> None:
        """Brings the prices to the rows that the steps since `mark` have kept."""
        for step in self.steps[mark:]:
            if isinstance(step, KeepRows):
                self.prices = self.prices[step.rows]

    def proved(self) -> int | None:
        """The least bound of the case's parts, or its own where that is better; None is more than any number."""
        own = self.bound
        if not self.parts:
            return own
        bounds = [part.proved() for part in self.parts]
        least = min((bound for bound in bounds if bound is not None), default=None)
        return None if own is None or least is None else max(own, least)

    def proof(self) -> Proof:
        """The derivation of `proved`."""
        own = self.bound
        bounds = [part.proved() for part in self.parts]
        least = min((bound for bound in bounds if bound is not None), default=None)
        if not self.parts or own is None or (least is not None and least <= own):
            return Proof(tuple(self.steps[: self.reached]), self.end)
        parts = tuple(part.proof() for part in self.parts)
        return Proof(tuple(self.steps), Branch(self.node, self.choices, parts))
