"""Building a core from a problem: parallel edges merged, loops folded, only the instants that can bind."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InputError
from strategy.ilp.certificate.proof import IMPOSSIBLE
from strategy.ilp.problem import FORBIDDEN, Problem
from strategy.ilp.solve.core import MAX_TOTAL_COST, Core, IntArray


def build_core(problem: Problem, *, budget: Budget = UNLIMITED) -> Core:
    """The working form of a problem that `validate` has seen.

    Args:
        problem: what is to be solved.
        budget: when to give up.

    Raises:
        InputError: costs whose sum does not fit.
        NoChoiceError: a node has no choice that is allowed.
        OutOfTimeError: the time is up.
    """
    (own, sizes), (entries, cells) = _own_costs(problem), _table_costs(problem)
    total = _sum_of_largest(own, sizes) + _sum_of_largest(entries, cells)
    if total > MAX_TOTAL_COST:
        raise InputError(
            "costs are too large to be added exactly",
            where=f"problem {problem.name!r}",
            got=total,
            expected=f"largest legal costs that sum to at most {MAX_TOTAL_COST}",
            hint="use a coarser unit of cost",
        )
    core = Core(
        costs=dict(enumerate(_split(own, sizes))),
        tables={i: {} for i in range(len(sizes))},
        spans={i: {} for i in range(len(sizes))},
        room=np.zeros(0, np.int64),
        budget=budget,
        cost_ceiling=total,
    )
    for edge, line in zip(problem.edges, _split(entries, cells), strict=True):
        core.check_time()
        table = line.reshape(sizes[edge.tail], sizes[edge.head])
        if edge.tail == edge.head:
            core.costs[edge.tail] = _sum(core.costs[edge.tail], np.diagonal(table))
        elif edge.head in core.tables[edge.tail]:
            core.set_table(edge.tail, edge.head, _sum(core.tables[edge.tail][edge.head], table))
        else:
            core.set_table(edge.tail, edge.head, table)
    if problem.limit is not None:
        _add_memory(core, problem, min(problem.limit, MAX_TOTAL_COST))
    for node, cost in core.costs.items():
        if cost.max() >= FORBIDDEN:
            dropped = np.flatnonzero(cost >= FORBIDDEN)
            core.drop_choices(node, dropped, np.full(dropped.size, IMPOSSIBLE))
    if min(own.min(initial=0), entries.min(initial=0)) < 0:
        core.normalise(core.pairs())
    else:
        core.subtract_minima()
    return core


def largest_cost(problem: Problem) -> int:
    """What no legal choice costs more than: the largest legal cost of every node and edge, added up."""
    return _sum_of_largest(*_own_costs(problem)) + _sum_of_largest(*_table_costs(problem))


def _own_costs(problem: Problem) -> tuple[IntArray, list[int]]:
    """Costs of all nodes' choices, one after the other, and how many each has."""
    sizes = [len(node.costs) for node in problem.nodes]
    return _saturated(itertools.chain.from_iterable(node.costs for node in problem.nodes)), sizes


def _table_costs(problem: Problem) -> tuple[IntArray, list[int]]:
    """Entries of all edges' tables, one after the other, and how many each has."""
    cells = [len(edge.costs) for edge in problem.edges]
    return _saturated(itertools.chain.from_iterable(edge.costs for edge in problem.edges)), cells


def _add_memory(core: Core, problem: Problem, limit: int) -> None:
    """Rows for the times at which the limit can bind: maximal live sets whose largest amounts exceed it.

    Two instants with the same live set are one row, and among nested live sets only the largest matters: those
    are the instants that directly follow a beginning and directly precede an end.
    """
    usages = [(i, usage) for i, node in enumerate(problem.nodes) for usage in node.usages if usage.begin < usage.end]
    held = _split(
        _saturated(itertools.chain.from_iterable(usage.amounts for _, usage in usages)),
        [len(usage.amounts) for _, usage in usages],
    )
    items = [(i, usage.begin, usage.end, amounts) for (i, usage), amounts in zip(usages, held, strict=True)]
    starts = np.unique([begin for _, begin, _, _ in items])
    items = [item for item in items if item[3].any()]
    begins, ends = {item[1] for item in items}, {item[2] for item in items}
    times = sorted(begins | ends)
    peaks = [time for time, after in itertools.pairwise(times) if time in begins and after in ends]
    first = np.searchsorted(peaks, [item[1] for item in items])
    last = np.searchsorted(peaks, [item[2] for item in items])
    largest = np.array([amounts.max() for _, _, _, amounts in items], np.int64)
    most = np.zeros(len(peaks) + 1, np.int64)
    np.add.at(most, first, largest)
    np.subtract.at(most, last, largest)
    binding = np.cumsum(most)[:-1] > limit
    core.room = np.full(starts.size, limit, np.int64)
    kept = np.zeros(starts.size, np.bool_)
    kept[np.searchsorted(starts, np.array(peaks, np.int64)[binding])] = True
    core.keep_rows(kept)
    row = np.concatenate(([0], np.cumsum(binding))).tolist()
    for (node, _, _, amounts), begin, end in zip(items, first.tolist(), last.tolist(), strict=True):
        core.check_time()
        if row[begin] < row[end]:
            core.add_span(node, row[begin], row[end], amounts)


def _saturated(values: Iterable[int]) -> IntArray:
    """`values` in int64, with everything beyond `FORBIDDEN` brought back to it."""
    values = list(values)
    try:
        return np.minimum(np.array(values, np.int64), FORBIDDEN)
    except OverflowError:
        return np.array([min(value, FORBIDDEN) for value in values], np.int64)


def _split(values: IntArray, sizes: Sequence[int]) -> list[IntArray]:
    """`values` in pieces of these sizes."""
    ends = list(itertools.accumulate(sizes))
    return [values[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _sum(one: IntArray, other: IntArray) -> IntArray:
    """Sum of entries of any sign, in which forbidden entries stay forbidden."""
    return np.where((one >= FORBIDDEN) | (other >= FORBIDDEN), FORBIDDEN, one + other)


def _sum_of_largest(values: IntArray, sizes: Sequence[int]) -> int:
    """The largest legal magnitude of every piece, added up."""
    if not sizes:
        return 0
    legal = np.abs(np.where(values < FORBIDDEN, values, 0))
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    return sum(np.maximum.reduceat(legal, starts).tolist())


def validate(problem: Problem) -> None:
    """Checks that lengths and indices agree and that the memory can be added.

    Raises:
        InputError: lengths that disagree, an unknown node, or negative memory.
    """
    where = f"problem {problem.name!r}"
    held = 0
    for i, node in enumerate(problem.nodes):
        if not node.costs:
            raise InputError("a node has no choices", where=f"{where}, node {i} ({node.name})")
        for usage in node.usages:
            if len(usage.amounts) != len(node.costs) or min(usage.amounts) < 0:
                raise InputError(
                    "memory does not fit the choices",
                    where=f"{where}, node {i} ({node.name})",
                    got=usage.amounts,
                    expected=f"{len(node.costs)} amounts >= 0",
                )
            held += max(usage.amounts)
    if problem.limit is not None and problem.limit < 0:
        raise InputError("a negative memory limit", where=where, got=problem.limit, expected="at least 0, or None")
    if held > MAX_TOTAL_COST:
        raise InputError("memory is too large to be added exactly", where=where, got=held, expected="at most 10^17")
    count = len(problem.nodes)
    for k, edge in enumerate(problem.edges):
        if not (0 <= edge.tail < count and 0 <= edge.head < count):
            raise InputError("an edge names an unknown node", where=f"{where}, edge {k}", got=(edge.tail, edge.head))
        cells = len(problem.nodes[edge.tail].costs) * len(problem.nodes[edge.head].costs)
        if len(edge.costs) != cells:
            raise InputError(
                "an edge's table has the wrong size",
                where=f"{where}, edge {k}",
                got=len(edge.costs),
                expected=f"{cells} costs",
            )
