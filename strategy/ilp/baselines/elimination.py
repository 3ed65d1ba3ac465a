"""OneFlow's auto-parallel: eliminate nodes, merge pairs, then search neighbourhoods of four nodes.

Source: OneFlow master, `auto_parallel/sbp_graph.cpp`. Until nothing applies:

    edge elimination    parallel edges are one table (they are so from the start here)
    node elimination    a node with two neighbours becomes a table between them: a min-plus product
    child elimination   a node with one neighbour becomes part of that one's costs
    pick and merge      of all pairs with at most 100 legal joint choices, the one of which the smallest share of
                        its joint choices is legal becomes one node, while at least four nodes are left

What is left starts greedily, and neighbourhoods (a node and at most three of its neighbours) are solved exactly, by
branch and bound with everything else held, until none improves. Then the eliminated nodes follow, last first.

On series-parallel graphs without a memory limit elimination alone is exact. Memory: as there, the bytes of the nodes
that live when most is held are charged at a price that doubles, from 0.1 to 25.6 times the choice's cost over the
limit, until the choice fits; `repair` is our help when none does. OneFlow publishes no figure of it that its cluster is
not part of.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from strategy.base.budget import Budget
from strategy.ilp.baselines.greedy import in_order
from strategy.ilp.baselines.memory import REPAIR_S, Memory, repair
from strategy.ilp.baselines.tables import NOT_CHOSEN, CostTables, FloatArray, Found, add_table, build_tables
from strategy.ilp.problem import Problem, evaluate

MERGED_CHOICES = 100
LEAST_NODES = 4
NEIGHBOURHOOD = 4
PRICES = tuple(0.1 * 2**k for k in range(9))


def elimination(problem: Problem, budget: Budget) -> Found:
    """The choice that is found for the first price of memory at which it fits."""
    tables = build_tables(problem)
    choice = _solve(tables, budget)
    memory = Memory(problem, choice)
    if problem.limit is not None and memory.excess > 0:
        cost = evaluate(problem, choice).cost
        held = _held_at(memory, int(memory.live.argmax()))
        for price in PRICES:
            if budget.is_over():
                break
            unit = price * cost / max(problem.limit, 1)
            costs = tuple(c + unit * held.get(node, 0.0) for node, c in enumerate(tables.costs))
            choice = _solve(CostTables(costs, tables.tables), budget)
            if Memory(problem, choice).excess == 0:
                break
    return Found(repair(problem, tables, choice, Budget.of(REPAIR_S)))


def _held_at(memory: Memory, instant: int) -> dict[int, FloatArray]:
    return {
        node: amounts
        for node, pieces in enumerate(memory.pieces)
        for begin, end, amounts in pieces
        if begin <= instant < end
    }


def _solve(tables: CostTables, budget: Budget) -> list[int]:
    """A choice by elimination, merging and neighbourhoods, without memory."""
    graph = _Graph(tables, budget)
    graph.reduce()
    live = sorted(graph.costs)
    place = {node: i for i, node in enumerate(live)}
    rest = CostTables(
        tuple(graph.costs[node] for node in live),
        tuple({place[other]: table for other, table in graph.tables[node].items()} for node in live),
    )
    picks = in_order(rest)
    _improve(rest, picks, budget)
    chosen = dict(zip(live, picks, strict=True))
    for settle in reversed(graph.settles):
        settle(chosen)
    return [chosen[node] for node in range(len(tables.costs))]


class _Graph:
    """The nodes that are left, and how those that are not follow from them."""

    def __init__(self, tables: CostTables, budget: Budget) -> None:
        self.costs = dict(enumerate(tables.costs))
        self.tables = dict(enumerate(dict(pairs) for pairs in tables.tables))
        self.settles: list[Callable[[dict[int, int]], None]] = []
        self.budget = budget

    def reduce(self) -> None:
        """Eliminate, merge, and again, until nothing applies or the time is over."""
        self._eliminate(list(self.costs))
        while len(self.costs) > LEAST_NODES and not self.budget.is_over():
            pair = self._tightest_pair()
            if pair is None:
                return
            self._merge(*pair)
            self._eliminate([pair[0], *self.tables[pair[0]]])

    def _eliminate(self, nodes: Iterable[int]) -> None:
        waiting = deque(nodes)
        while waiting and not self.budget.is_over():
            node = waiting.popleft()
            if node in self.costs and len(self.tables[node]) <= 2:
                waiting.extend(self._fold(node))

    def _fold(self, node: int) -> list[int]:
        """Eliminate a node of at most two neighbours; returns these."""
        around = list(self.tables[node])
        joint, pairs = self.costs.pop(node), self.tables.pop(node)
        for axis, other in enumerate(around):
            del self.tables[other][node]
            joint = joint[..., np.newaxis] + pairs[other].reshape(joint.shape[0], *(1,) * axis, -1)
        follows = joint.argmin(axis=0)
        least = joint.min(axis=0)

        def settle(chosen: dict[int, int]) -> None:
            chosen[node] = int(follows[tuple(chosen[other] for other in around)])

        self.settles.append(settle)
        if len(around) == 1:
            self.costs[around[0]] = self.costs[around[0]] + least
        elif len(around) == 2:
            add_table(self.tables, around[0], around[1], least)
        return around

    def _tightest_pair(self) -> tuple[int, int] | None:
        best, lowest = None, np.inf
        for node, pairs in self.tables.items():
            for other, table in pairs.items():
                if node < other:
                    legal = int(np.isfinite(table).sum())
                    if legal <= MERGED_CHOICES and legal / table.size < lowest:
                        best, lowest = (node, other), legal / table.size
        return best

    def _merge(self, node: int, other: int) -> None:
        """`other` becomes part of `node`, whose choices are the legal pairs."""
        table = self.tables[node].pop(other)
        del self.tables[other][node]
        mine, theirs = np.nonzero(np.isfinite(table)) if np.isfinite(table).any() else np.nonzero(np.ones_like(table))
        self.costs[node] = self.costs[node][mine] + self.costs.pop(other)[theirs] + table[mine, theirs]
        for third, pair in list(self.tables[node].items()):
            self.tables[node][third] = pair[mine]
            self.tables[third][node] = pair[mine].T
        for third, pair in self.tables.pop(other).items():
            del self.tables[third][other]
            add_table(self.tables, node, third, pair[theirs])

        def settle(chosen: dict[int, int]) -> None:
            pick = chosen[node]
            chosen[node], chosen[other] = int(mine[pick]), int(theirs[pick])

        self.settles.append(settle)


def _improve(tables: CostTables, picks: list[int], budget: Budget) -> None:
    """Solve neighbourhoods until none improves; a node that moved wakes its neighbours."""
    waiting = deque(range(len(picks)))
    queued = set(waiting)
    while waiting and not budget.is_over():
        centre = waiting.popleft()
        queued.discard(centre)
        for group in _groups(tables, centre):
            before = [picks[node] for node in group]
            _solve_group(tables, group, picks, budget)
            moved = [node for node, old in zip(group, before, strict=True) if picks[node] != old]
            for node in dict.fromkeys(other for one in moved for other in (one, *tables.tables[one])):
                if node not in queued:
                    queued.add(node)
                    waiting.append(node)


def _groups(tables: CostTables, centre: int) -> list[tuple[int, ...]]:
    """The centre with its neighbours, three at a time, in order."""
    around = list(tables.tables[centre])
    size = NEIGHBOURHOOD - 1
    return [(centre, *around[i : i + size]) for i in range(0, max(len(around), 1), size)]


def _solve_group(tables: CostTables, group: Sequence[int], picks: list[int], budget: Budget) -> None:
    """The best choice of a group while all others keep theirs, by branch and bound."""
    held = list(picks)
    for node in group:
        held[node] = NOT_CHOSEN
    outside = [tables.prices(node, held) for node in group]
    rest = [0.0, *itertools.accumulate(float(prices.min()) for prices in reversed(outside))][::-1]
    best = _group_cost(tables, group, outside, [picks[node] for node in group])
    path: list[int] = []

    def descend(depth: int, paid: float) -> None:
        nonlocal best
        node = group[depth]
        inside = [
            tables.tables[node][group[k]][:, pick] for k, pick in enumerate(path) if group[k] in tables.tables[node]
        ]
        prices = paid + outside[depth] + (np.sum(inside, axis=0) if inside else 0.0)
        for choice in np.argsort(prices, kind="stable").tolist():
            cost = float(prices[choice])
            if cost + rest[depth + 1] >= best or budget.is_over():
                return
            path.append(choice)
            if depth + 1 == len(group):
                best = cost
                for member, pick in zip(group, path, strict=True):
                    picks[member] = pick
            else:
                descend(depth + 1, cost)
            path.pop()

    descend(0, 0.0)


def _group_cost(tables: CostTables, group: Sequence[int], outside: Sequence[FloatArray], picks: Sequence[int]) -> float:
    cost = sum(float(prices[pick]) for prices, pick in zip(outside, picks, strict=True))
    for (a, i), (b, j) in itertools.combinations(zip(group, picks, strict=True), 2):
        if b in tables.tables[a]:
            cost += float(tables.tables[a][b][i, j])
    return cost
