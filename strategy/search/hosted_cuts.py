"""Hosted cuts: where what is bounded far below all that fits is not likely to fit, hosts are let in to hold some of it.

Hosts everywhere are a space of several times as many configurations, most of which are better off without. So they are
left alone at first, unless state fills much of all memory (`offloads_of`), and then let in where a cut of the step into
micro-batches and ranks seems to lack nothing but memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strategy.layout.config import Offload, PlanConfig
from strategy.search.box import Box
from strategy.space.request import Request

FASTER = 0.1
"""By this part of the best that fits, at least, a bound has to be below it."""
KNOWN = 3
"""Level of a box of which it is known what its layers take in its memory."""
MOST = 3
"""Boxes that hosts are let in for at a time."""


def crowded_boxes(boxes: Sequence[Box], best_ns: float) -> list[Box]:
    """Such boxes, those that are bounded least; of cuts of which nothing is looked at yet that waits on hosts.

    Args:
        boxes: of the space.
        best_ns: what the best takes that is likely to fit.
    """
    hosted = {box.configs[0].cut for box in boxes if box.configs[0].offload is not Offload.NONE}
    crowded = [
        box
        for box in boxes
        if box.level >= KNOWN
        and box.bound_ns < (1 - FASTER) * best_ns
        and (box.is_proposed or box.promise[1] >= best_ns)
        and box.configs[0].cut not in hosted
    ]
    return sorted(crowded, key=lambda box: box.bound_ns)[:MOST]


def with_hosts(request: Request, crowded: Sequence[Box]) -> Request:
    """What asks for a space in which hosts may hold some of the cuts of these boxes, too."""
    cuts = dict.fromkeys((*request.pins.hosted, *(box.config.cut for box in crowded)))
    return replace(request, pins=replace(request.pins, hosted=tuple(cuts)))


def waits_on_hosts(config: PlanConfig, among: Sequence[Box]) -> bool:
    """Whether a configuration is of a cut of these boxes, with something on hosts."""
    return config.offload is not Offload.NONE and config.cut in {box.config.cut for box in among}


def is_like_one(box: Box, among: Sequence[Box]) -> bool:
    """Whether a box is one of these, hosts aside."""
    config = box.configs[0]
    return config.saving(config.recompute, config.zero_stage, Offload.NONE) in {one.configs[0] for one in among}
