"""Collectives of one domain: more bytes are never faster, halves are no dearer than the whole."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.base.errors import InputError
from strategy.hardware.devices import DEVICES
from strategy.kernels import links
from strategy.kernels.calibration import KernelKind, shipped
from strategy.kernels.links import DirectConstants, RingConstants
from strategy.kernels.precision import Floats, KernelPrecision
from strategy.program.program import ActKind
from tests.strategy.kernels.support import drawn, grows

DEVICE_NAMES = ("V100-32", "A100-80", "H100", "B200", "GB300", "MI300X")
KINDS = (ActKind.ALL_REDUCE, ActKind.ALL_GATHER, ActKind.REDUCE_SCATTER, ActKind.ALL_TO_ALL)


def ring(name: str, kind: ActKind, ranks: Floats, nbytes: Floats) -> Floats:
    constants = shipped().constants(KernelKind.RING, KernelPrecision.BF16, DEVICES[name])
    assert isinstance(constants, RingConstants)
    return links.ring(DEVICES[name], constants, kind, ranks, nbytes)


def direct(name: str, ranks: Floats, nbytes: Floats) -> Floats:
    constants = shipped().constants(KernelKind.DIRECT, KernelPrecision.BF16, DEVICES[name])
    assert isinstance(constants, DirectConstants)
    return links.direct(DEVICES[name], constants, ranks, nbytes)


@pytest.mark.parametrize("name", DEVICE_NAMES)
def test_more_bytes_are_never_faster(name: str) -> None:
    sizes = drawn(1, (2, 72), (1, 2**33))
    for kind in KINDS:
        assert grows(lambda *given, kind=kind: ring(name, kind, *given), sizes, 1, seed=1)
    assert grows(lambda *given: direct(name, *given), sizes, 1, seed=1)


@pytest.mark.parametrize("name", DEVICE_NAMES)
def test_an_all_reduce_among_more_is_never_faster(name: str) -> None:
    sizes = drawn(1, (2, 72), (1, 2**33))
    assert grows(lambda *given: ring(name, ActKind.ALL_REDUCE, *given), sizes, 0, seed=2)
    assert grows(lambda *given: direct(name, *given), sizes, 0, seed=2)


@pytest.mark.parametrize("name", ["A100-80", "H100", "B200", "B300", "GB200"])
def test_an_all_reduce_takes_less_than_its_halves_one_after_the_other(name: str) -> None:
    ranks, nbytes = drawn(4, (2, 8), (2**20, 2**30))
    whole, half = (ring(name, kind, ranks, nbytes) for kind in (ActKind.ALL_REDUCE, ActKind.ALL_GATHER))
    assert (whole < 2 * half).all()


def test_one_shot_beats_rings_for_small_messages_alone() -> None:
    small, large = (np.array(float(size)) for size in (2**14, 2**29))
    eight = np.array(8.0)
    for name in ("A100-80", "H100", "B200"):
        assert direct(name, eight, small) < 0.5 * ring(name, ActKind.ALL_REDUCE, eight, small)
        assert direct(name, eight, large) > 0.8 * ring(name, ActKind.ALL_REDUCE, eight, large)


def test_a_group_of_one_sends_nothing() -> None:
    assert ring("H100", ActKind.ALL_TO_ALL, np.array(1.0), np.array(1e6)) == 0
    assert direct("H100", np.array(1.0), np.array(1e6)) == 0


def test_what_is_no_collective_is_refused() -> None:
    with pytest.raises(InputError, match="no collective"):
        ring("H100", ActKind.TRANSFER, np.array(2.0), np.array(1e6))
