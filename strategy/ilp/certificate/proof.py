"""The language of proofs: steps that shrink a problem without making it cheaper than it is, and what ends them.

A proof speaks of a *working problem*. At first it is the problem itself:

- a node per node, by its position; loops and parallel edges are folded; between two nodes there is one table or none;
- a memory row per distinct instant at which a usage of non-zero length begins, in order, with room `limit` (no rows
  without a limit); a usage spans the rows from its begin up to its end, and usages of a node with the same span are
  one. Of every span the least amount is taken out of the room of its rows; a span with nothing left is gone.
- entries of `FORBIDDEN` or more are forbidden, and stay so whatever is added to them.

Every step maps it to another one. If nothing legal costs less than b after the step, nothing legal costs less than b
(than min(b, `below`), for `Fix`) before it. Choices and rows are named by their index at that moment. Messages and
elimination orders speak of the live nodes and tables only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

# `Drop.by` of a choice that cannot be taken: forbidden by itself or with all choices of a neighbour, or too large.
IMPOSSIBLE = -1


@dataclass(frozen=True, slots=True)
class Prices:
    """What memory costs: byte-rows of row r at `units[r]` * 2^-`shift` each, units >= 0.

    The price of a choice is rounded down to a multiple of 2^-`bits`, once per node; 0 <= bits <= shift.
    """

    units: IntArray
    shift: int
    bits: int


@dataclass(frozen=True, slots=True)
class MessageBound:
    """The bound of priced memory and messages, in units of 2^-bits: a sum of minima over nodes and over tables.

    For every live pair (i, j), i < j, in ascending order: what the C_i choices of i, then the C_j choices of j take
    over from the table, all in one array. With messages m a node's vector is cost + price + sum of its m, and a table
    is table - m_i - m_j; the bound is the sum of all their minima less the price of the room.

    Nodes of `joined`, ascending, have no memory and no table between them, and take no part in the above. Those with
    the same neighbours, their scope, are one table over the scope instead: at each cell the sum, over these nodes, of
    the least that a choice of the node costs with its tables there. Messages of these tables follow those of the pairs:
    by ascending scope (its nodes ascending), what the choices of each of its nodes take over from the table.
    """

    prices: Prices
    messages: IntArray
    joined: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class EliminationBound:
    """The exact minimum of the problem with priced memory, by bucket elimination of all live nodes in `order`."""

    prices: Prices
    order: IntArray


Bound: TypeAlias = MessageBound | EliminationBound


@dataclass(frozen=True, slots=True)
class Normalise:
    """Row minima of the tables (`ones[k]`, `others[k]`) move to `ones[k]`, then column minima to `others[k]`.

    A line without a legal entry is left alone. A table of zeros is gone.
    """

    ones: IntArray
    others: IntArray


@dataclass(frozen=True, slots=True)
class Drop:
    """`node` loses `choices`, each `by` a choice that stays and is no worse, or because it is `IMPOSSIBLE`.

    No worse: it holds no more memory in any span and costs no more, whatever legal partners the other one has.
    """

    node: int
    choices: IntArray
    by: IntArray


@dataclass(frozen=True, slots=True)
class Eliminate:
    """`node` has no memory and at most two neighbours, or a single choice: its minimum moves to its neighbours.

    Between two neighbours, the least of its costs moves to the constant first.
    """

    node: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Each choice of `into` leaves at most one legal choice to its neighbour `node`, which is written onto it."""

    node: int
    into: int


@dataclass(frozen=True, slots=True)
class KeepRows:
    """The other memory rows are forgotten. Forgetting a limit is always sound."""

    rows: IntArray


@dataclass(frozen=True, slots=True)
class Fix:
    """`nodes[k]` loses `choices[k]`: `bound` says that whatever takes one of them costs at least `below`.

    With messages the bound of a choice is the whole bound, less its node's minimum, plus the node's entry for it; with
    an elimination order it is the exact minimum of what takes the choice. Both count in full units, rounded up.
    """

    bound: Bound
    below: int
    nodes: IntArray
    choices: tuple[IntArray, ...]


Step: TypeAlias = Normalise | Drop | Eliminate | Merge | KeepRows | Fix


@dataclass(frozen=True, slots=True)
class Empty:
    """Nothing is legal: a node has no choice, no choice that is allowed, or a row has negative room."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One of `parts` holds whatever is legal: every choice of `node` is in one of the lists `choices`.

    `choices[k]` is what `node` keeps in part k.
    """

    node: int
    choices: tuple[IntArray, ...]
    parts: tuple[Proof, ...]


End: TypeAlias = Bound | Branch | Empty


@dataclass(frozen=True, slots=True)
class Proof:
    """Steps, then what is left: its bound, cases, or nothing."""

    steps: tuple[Step, ...]
    end: End


@dataclass(frozen=True, slots=True)
class Certificate:
    """A claim about one problem: no legal choice costs less than `lower_bound`, and `choice` costs `cost`.

    `problem` is `digest.problem_digest`. Without `lower_bound` the claim is that nothing is legal, which is also what a
    bound above the sum of all nodes' and tables' largest legal entries (at least 0) shows. Without a choice, nothing is
    said about what can be reached.
    """

    problem: str
    choice: tuple[int, ...] | None
    cost: int | None
    lower_bound: int | None
    proof: Proof
