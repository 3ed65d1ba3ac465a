"""The independent checker of an answer: it shares no code with the solver, nor with `evaluate`.

Lifetimes are swept differently on purpose: memory is summed at every instant at which something begins, since that
is where a peak can start.
"""

from __future__ import annotations

from collections.abc import Sequence

from strategy.ilp.problem import FORBIDDEN, Problem


def check_solution(problem: Problem, choice: Sequence[int], cost: int) -> list[str]:
    """What is wrong with `choice` at the claimed `cost`, one message per fault; an empty list means legal.

    Args:
        problem: what was solved.
        choice: one option index per node.
        cost: the total cost that was claimed for it.
    """
    if len(choice) != len(problem.nodes):
        return [f"the choice has {len(choice)} entries (expected {len(problem.nodes)}, one per node)"]
    faults = []
    for i, (node, pick) in enumerate(zip(problem.nodes, choice, strict=True)):
        if isinstance(pick, bool) or not isinstance(pick, int) or not 0 <= pick < len(node.costs):
            faults.append(f"node {i} ({node.name}): choice {pick!r} (expected an integer in 0..{len(node.costs) - 1})")
    if faults:
        return faults
    return _cost_faults(problem, choice, cost) + _memory_faults(problem, choice)


def _cost_faults(problem: Problem, choice: Sequence[int], claimed: int) -> list[str]:
    faults = []
    total = 0
    for i, node in enumerate(problem.nodes):
        price = node.costs[choice[i]]
        total += price
        if price >= FORBIDDEN:
            faults.append(f"node {i} ({node.name}): choice {choice[i]} is forbidden (cost {price})")
    for k, edge in enumerate(problem.edges):
        tail, head = problem.nodes[edge.tail], problem.nodes[edge.head]
        price = edge.costs[choice[edge.tail] * len(head.costs) + choice[edge.head]]
        total += price
        if price >= FORBIDDEN:
            faults.append(
                f"edge {k}: choice {choice[edge.tail]} of node {edge.tail} ({tail.name}) forbids "
                f"choice {choice[edge.head]} of node {edge.head} ({head.name})"
            )
    if total != claimed:
        faults.append(f"the choice costs {total} (the answer says {claimed})")
    return faults


def _memory_faults(problem: Problem, choice: Sequence[int]) -> list[str]:
    if problem.limit is None:
        return []
    held = [
        (usage.begin, usage.end, usage.amounts[pick], i)
        for i, (node, pick) in enumerate(zip(problem.nodes, choice, strict=True))
        for usage in node.usages
        if usage.begin < usage.end
    ]
    held.sort()
    live: list[tuple[int, int, int, int]] = []
    worst: tuple[int, int, list[tuple[int, int, int, int]]] | None = None
    for position, item in enumerate(held):
        live = [other for other in live if other[1] > item[0]]
        live.append(item)
        if position + 1 < len(held) and held[position + 1][0] == item[0]:
            continue
        load = sum(other[2] for other in live)
        if load > problem.limit and (worst is None or load > worst[0]):
            worst = (load, item[0], live)
    if worst is None:
        return []
    load, instant, items = worst
    largest = max(items, key=lambda item: (item[2], -item[3]))
    name = problem.nodes[largest[3]].name
    return [
        f"memory at time {instant} is {load} bytes (expected at most {problem.limit}); "
        f"the largest part is {largest[2]} bytes of node {largest[3]} ({name})"
    ]
