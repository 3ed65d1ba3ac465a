"""What repeats of a list of layers."""

from __future__ import annotations

import pytest

from strategy.models.huggingface.arrangement import Kind, LayerPattern, arranged

KINDS: dict[str, Kind] = {"d": (0, False), "s": (0, True), "w": (8, False)}


@pytest.mark.parametrize(
    ("layers", "before", "count", "period", "after"),
    [
        ("d", "", 1, "d", ""),
        ("dddd", "", 4, "d", ""),
        ("dddssssss", "ddd", 6, "s", ""),
        ("wdwdwd", "", 3, "wd", ""),
        ("wdwdw", "", 2, "wd", "w"),
        ("wwdwwdwwdww", "", 3, "wwd", "ww"),
        ("dssssd", "d", 4, "s", "d"),
        ("swd", "", 1, "s", "wd"),
    ],
)
def test_layers_are_arranged(layers: str, before: str, count: int, period: str, after: str) -> None:
    wanted = tuple(KINDS[one] for one in before + period + after)
    assert before + count * period + after == layers
    assert arranged([KINDS[one] for one in layers]) == LayerPattern(len(before), count, len(after), wanted)


def test_many_layers_take_no_time() -> None:
    found = arranged([KINDS["wd"[place % 2]] for place in range(4096)])
    assert (found.layers, len(found.kinds)) == (2048, 2)
