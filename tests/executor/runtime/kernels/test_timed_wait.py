"""Timed-wait kernels: acts last as long as their work takes at fixed rates, and leave what a step can go on with."""

from __future__ import annotations

import time

import numpy as np
import pytest

from executor.runtime.kernels.base import open_kernels
from executor.runtime.kernels.timed_wait import ACT_S, BYTES_PER_S, FLOP_PER_S, seconds
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace


def product(size: int) -> Call:
    left, right, written = (np.zeros((size, size), np.float32) for _ in range(3))
    box = ((0, size), (0, size))
    return Call(np, {}, (left, right), (written,), (), (box, box), (box,), Workspace(np))


def test_an_act_takes_what_its_flop_and_bytes_take() -> None:
    size = 512
    expected = ACT_S + 2 * size**3 / FLOP_PER_S + 3 * 4 * size**2 / BYTES_PER_S
    assert seconds(op_definition("matmul"), product(size)) == pytest.approx(expected)


def test_it_waits_and_leaves_the_core_to_others() -> None:
    """The product itself would take the core for as long as it is."""
    call = product(1024)
    act, lasts_s = open_kernels("timed-wait").bind(op_definition("matmul"), call), 2 * 1024**3 / FLOP_PER_S
    act.run()
    begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
    act.run()
    assert time.perf_counter() - begin_s >= lasts_s
    assert time.thread_time() - begin_cpu_s < lasts_s / 4
    assert (call.outputs[0] == 1).all()
