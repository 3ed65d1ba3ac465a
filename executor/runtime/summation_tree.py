"""One binary tree for every sum over the micro-batches of a step, whichever ranks compute them.

    micro-batches of the global batch, by index      0 1 2 3 4 5
    pairs of neighbours                              (0 1) (2 3) (4 5)
    pairs of these; what has none waits              ((0 1) (2 3)) (4 5)
    the sum                                          (((0 1) (2 3)) (4 5))

Floating-point sums depend on their order. A rank adds up what it has of the tree's nodes and no more (`TreeSum`): one
node, where its micro-batches are neighbours and a power of two, else several. What ranks then exchange are nodes, and
what reductions between them add up are the nodes above (`combined`). So all plans of equal micro-batches give equal
bits; which leaves a rank has, `bitwise` says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from executor.runtime.transport.base import HostArray
from strategy.graph.ops.base import Array

Combine = Callable[[HostArray, HostArray, HostArray], object]
"""`combine(left, right, into)`."""
Node = tuple[int, int]
"""The leaves [begin, end) that it is above of; a leaf is a node, too."""


def left_half(count: int) -> int:
    """How many of `count` leaves, two at least, are in the left half of their node."""
    return 1 << (count - 1).bit_length() - 1


def left_and_right(node: Node) -> tuple[Node, Node]:
    """The two nodes below one that is no leaf."""
    begin, end = node
    middle = begin + left_half(end - begin)
    return (begin, middle), (middle, end)


def nodes_over(leaves: Collection[int], total: int) -> Iterator[Node]:
    """The highest nodes of the tree of `total` leaves that are above of these leaves alone, from left to right."""
    held = frozenset(leaves)

    def below(node: Node) -> Iterator[Node]:
        inside = sum(leaf in held for leaf in range(*node))
        if inside == node[1] - node[0]:
            yield node
        elif inside:
            for half in left_and_right(node):
                yield from below(half)

    return below((0, total))


@cache
def _families(total: int) -> Mapping[Node, tuple[Node, Node, Node]]:
    """Node -> the one above of it, and that one's halves."""
    found: dict[Node, tuple[Node, Node, Node]] = {}
    left = [(0, total)]
    while left:
        node = left.pop()
        if node[1] - node[0] > 1:
            found |= {half: (node, *left_and_right(node)) for half in left_and_right(node)}
            left += left_and_right(node)
    return found


def combined(
    terms: Mapping[Node, HostArray],
    total: int,
    combine: Combine,
    into: HostArray,
    scratch: Callable[[int], HostArray],
) -> HostArray:
    """The root over `terms`, nodes that tile the tree, which stay as they are.

    It is `into`, or the term itself where it is the only one. `scratch(depth)` gives memory like `into`, for right
    halves.
    """
    return _sum_of((0, total), 0, terms, combine, into, scratch)


def _sum_of(
    node: Node,
    depth: int,
    terms: Mapping[Node, HostArray],
    combine: Combine,
    place: HostArray,
    scratch: Callable[[int], HostArray],
) -> HostArray:
    # No closure of `combined`: one that calls itself is a cycle, and every step would leave garbage for the collector.
    if node in terms:
        return terms[node]
    left, right = left_and_right(node)
    one = _sum_of(left, depth + 1, terms, combine, place, scratch)
    combine(one, _sum_of(right, depth + 1, terms, combine, scratch(depth), scratch), place)
    return place


@dataclass(slots=True)
class TreeSum:
    """Sums of `leaves`, that come in this order, in a tree of `total`; what it keeps meanwhile are nodes.

    `make` gives memory for a term, `combine` adds up two.
    """

    leaves: Sequence[int]
    total: int
    make: Callable[[], Array]
    combine: Combine
    _waiting: dict[Node, Array] = field(default_factory=dict)
    _free: list[Array] = field(default_factory=list)
    _count: int = 0

    def room(self) -> Array:
        """Memory to write the next leaf into."""
        if not self._free:
            self._free.append(self.make())
        return self._free[-1]

    def add(self) -> Sequence[Array] | None:
        """Take what was written into `room()`; after the last leaf, the nodes over all, whole until the next leaf."""
        leaf, families = self.leaves[self._count], _families(self.total)
        node = leaf, leaf + 1
        self._waiting[node] = self._free.pop()
        while node in families:
            above, left, right = families[node]
            if left not in self._waiting or right not in self._waiting:
                break
            one, other = self._waiting.pop(left), self._waiting.pop(right)
            self.combine(one, other, one)
            self._free.append(other)
            self._waiting[above] = one
            node = above
        self._count += 1
        if self._count < len(self.leaves):
            return None
        found = [self._waiting[node] for node in sorted(self._waiting)]
        self._waiting.clear()
        self._count = 0
        self._free += found
        return found


def most_held(leaves: Sequence[int], total: int) -> int:
    """For how many terms a `TreeSum` of these leaves makes memory."""
    made = 0

    def make() -> None:
        nonlocal made
        made += 1

    tree = TreeSum(leaves, total, make, lambda *_: None)
    for _ in leaves:
        tree.room()
        tree.add()
    return made
