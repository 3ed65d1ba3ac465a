"""What a cluster says of its ranks."""

from __future__ import annotations

from strategy.hardware.presets import find_cluster


def test_links_by_the_levels_that_ranks_cross() -> None:
    cluster = find_cluster("dgx-a100:2")
    assert cluster.level((0, 7)) == "intra"
    assert cluster.level((7, 8)) == "inter"
    assert cluster.level((9, 15)) == "intra"
    assert cluster.link("intra") is cluster.intra
    assert cluster.link("inter") is cluster.inter
    assert not cluster.crosses_nodes((3,))
    assert cluster.overlaps
