"""What a cluster says of its ranks."""

from __future__ import annotations

from dataclasses import replace

from strategy.hardware.presets import find_cluster
from tests.support.small_plans import cluster as small_cluster


def test_links_by_the_levels_that_ranks_cross() -> None:
    cluster = find_cluster("dgx-a100:2")
    assert cluster.level((0, 7)) == "intra"
    assert cluster.level((7, 8)) == "inter"
    assert cluster.level((9, 15)) == "intra"
    assert cluster.link("intra") is cluster.intra
    assert cluster.link("inter") is cluster.inter
    assert not cluster.crosses_nodes((3,))
    assert cluster.overlaps


def test_whether_communication_overlaps_is_said_by_the_link() -> None:
    cluster = small_cluster(4, per_node=2)
    assert not cluster.overlaps
    wired = replace(cluster, inter=replace(cluster.inter, overlaps=True))
    assert wired.overlaps
    assert (wired.overlaps_on("intra"), wired.overlaps_on("inter")) == (False, True)
    alone = replace(wired, nodes=1)
    assert not alone.overlaps, "nothing passes through the wire"
    quiet = small_cluster(4, backend="cupy", per_node=2)
    assert quiet.overlaps
    assert not replace(quiet, inter=replace(quiet.inter, overlaps=False)).overlaps
