"""What is asked for layouts beside the box that promises most."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

from strategy.search.box import Box
from strategy.search.search_state import SearchState
from strategy.search.second_box import TOLD, UNLIKE, second_box
from tests.strategy.search.test_prospects import refinement


def test_until_something_of_both_kinds_fits_one_box_has_a_pipeline_and_one_has_none() -> None:
    found = refinement(tp=1, micro_batch=4)
    piped, flat = ([box for box in found.boxes if (box.config.pp > 1) is kind] for kind in (True, False))
    weighed = {box: 100.0 + number for kind in (piped, flat) for number, box in enumerate(kind)}

    def promise(box: Box) -> float:
        box.promise = None, weighed[box]
        return weighed[box]

    found.prospects._promise = promise  # type: ignore[method-assign]
    for box in found.boxes:
        promise(box)
    assert second_box(found.prospects, piped[0], found.boxes) is flat[0]
    assert second_box(found.prospects, flat[0], found.boxes) is piped[0]
    weighed |= dict.fromkeys(flat, UNLIKE * weighed[piped[0]])
    assert second_box(found.prospects, piped[0], found.boxes) is None, "of which too little is expected"
    assert second_box(found.prospects, flat[0], flat) is None, "there is none of the other kind"
    weighed |= dict.fromkeys(flat, 100.0)
    fitting = SimpleNamespace(found=SimpleNamespace(config=flat[0].config))
    found.prospects.known = cast(
        "SearchState",
        SimpleNamespace(fitting=lambda request: [fitting], likely_ns=lambda one: math.inf, planned_ns=math.inf),
    )
    assert second_box(found.prospects, piped[0], found.boxes) is None, "something without a pipeline fits"
    assert second_box(found.prospects, flat[0], found.boxes) is piped[0]


def test_beside_a_box_of_which_nothing_is_known_comes_one_whose_layers_are() -> None:
    found = refinement(tp=1, pp=1, micro_batch=4, zero_stage=0)
    first, other, *_ = boxes = found.boxes
    weighed = {box: 2.0 + i for i, box in enumerate(boxes)}

    def promise(box: Box) -> float:
        box.promise = None, weighed[box]
        return weighed[box]

    found.prospects._promise = promise  # type: ignore[method-assign]
    for box in boxes:
        promise(box)
    assert second_box(found.prospects, first, boxes[1:]) is None, "of none the layers are known"
    other.level = TOLD
    assert second_box(found.prospects, first, boxes[1:]) is other
    first.level = 1
    assert second_box(found.prospects, first, boxes[1:]) is None, "its own are"
