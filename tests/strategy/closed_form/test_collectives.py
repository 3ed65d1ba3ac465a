"""Collectives: the promises that hold for every message, and the measured points."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.published.fitting import COLLECTIVES, read_all_reduces, reference
from strategy.closed_form import collectives
from strategy.closed_form.calibration import shipped
from strategy.closed_form.collectives import Group
from strategy.hardware.devices import DEVICES

SIZES = np.unique(np.round(np.geomspace(1, 2**34, 4000)))
GROUPS = [(2, 8), (4, 8), (8, 8), (8, 2), (16, 8), (64, 8), (64, 1), (512, 4), (3072, 8)]


def group(name: str, ranks: int, local: int) -> Group:
    sheet = DEVICES[name]
    one = np.ones(len(SIZES))
    return Group(
        ranks * one, min(local, ranks) * one, sheet.link_bytes_per_s * one, sheet.nic_bytes_per_s * one,
        np.full(len(SIZES), collectives.family_of(sheet)), np.full(len(SIZES), sheet.switched),
        np.zeros(len(SIZES), dtype=bool),
    )  # fmt: skip


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(("ranks", "local"), GROUPS)
def test_more_bytes_are_never_cheaper_whatever_way_is_taken(name: str, ranks: int, local: int) -> None:
    c, g = shipped().constants, group(name, ranks, local)
    for way in (collectives.all_reduce, collectives.reduce_scatter, collectives.all_to_all, collectives.send):
        seconds = way(SIZES, g, c)
        assert (seconds > 0).all()
        assert (np.diff(seconds) >= -1e-12 * seconds[1:]).all(), way.__name__


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(("ranks", "local"), GROUPS)
def test_half_of_an_all_reduce_is_never_dearer_than_the_whole(name: str, ranks: int, local: int) -> None:
    c, g = shipped().constants, group(name, ranks, local)
    assert (collectives.reduce_scatter(SIZES, g, c) <= collectives.all_reduce(SIZES, g, c)).all()


@pytest.mark.parametrize("name", ["V100-16", "A100-80", "B200"])
def test_two_levels_are_one_more_way_and_as_monotone(name: str) -> None:
    c, g = shipped().constants, group(name, 16, 8)
    flat, either = collectives.all_reduce(SIZES, g, c), collectives.all_reduce(SIZES, g, c, levels=True)
    assert (either <= flat).all()
    assert (either[-1] < flat[-1]) == (name == "V100-16"), "it pays where a node's GPUs share one slow NIC"
    assert (np.diff(either) >= -1e-12 * either[1:]).all()


def test_large_messages_reach_the_published_bandwidth_inside_a_node() -> None:
    """One node all-reduce, bus bandwidth: A100 235, H100 476-480, B200 838 GB/s."""
    for name, published in (("A100-80", 235e9), ("H100", 476e9), ("B200", 838e9)):
        seconds = collectives.all_reduce(SIZES, group(name, 8, 8), shipped().constants)[-1]
        assert SIZES[-1] * 2 * 7 / 8 / seconds == pytest.approx(published, rel=0.06)


def test_a_group_of_one_sends_nothing() -> None:
    assert (collectives.all_reduce(SIZES, group("H100", 1, 1), shipped().constants) == 0).all()


def test_measured_all_reduces_are_met_within_a_tenth() -> None:
    measured = read_all_reduces(reference(COLLECTIVES))
    error = np.abs(collectives.all_reduce(measured.nbytes, measured.group, shipped().constants) / measured.seconds - 1)
    assert len(error) > 5000
    assert error.mean() < 0.03
    for setup in set(measured.setups):
        mine = np.array([setup == other for other in measured.setups])
        assert error[mine].mean() < 0.12, setup


def test_half_the_network_doubles_a_large_message_between_nodes() -> None:
    c, g = shipped().constants, group("A100-80", 64, 1)
    slow = Group(g.ranks, g.local, g.link, g.nic / 2, g.family, g.switched, g.efa)
    ratio = collectives.all_reduce(SIZES, slow, c) / collectives.all_reduce(SIZES, g, c)
    assert ratio[-1] == pytest.approx(2, rel=0.02)
