"""Boxes by their bounds, the least first, while bounds rise."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from strategy.search.box import Box


class ByBound:
    """Of very many boxes the one that is bounded least, again and again."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        self.boxes = boxes
        self.waiting = [(box.bound_ns, i) for i, box in enumerate(boxes)]
        heapq.heapify(self.waiting)

    def least(self, is_open: Callable[[Box], bool]) -> Box | None:
        """The first of those with the least bound that are open; what is not is never looked at again."""
        while self.waiting:
            before_ns, i = self.waiting[0]
            bound_ns = self.boxes[i].bound_ns
            if bound_ns > before_ns:
                heapq.heapreplace(self.waiting, (bound_ns, i))
            elif is_open(self.boxes[i]):
                return self.boxes[i]
            else:
                heapq.heappop(self.waiting)
        return None
