"""Fusion and streams are found early in training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.exchange.fabric import tcp_cloud
from simulator.exchange.training import simulate
from simulator.exchange.tune import FRAGMENTS, STREAMS, exhaustive, tune
from tests.simulator.exchange.conftest import stack
from tests.support.long_parameters import long_but


@pytest.mark.parametrize(("nodes", "nbytes"), long_but([(4, 2**18), (32, 2**18), (8, 2**22)], 0))
def test_a_tuned_setting_is_within_a_twentieth_of_the_best(nodes: int, nbytes: int) -> None:
    layers = stack(12, nbytes, forward_ns=3_000_000)
    fabric = tcp_cloud(nodes, 25)
    tuned, best = tune(layers, fabric), exhaustive(layers, fabric)
    assert tuned.trials < len(FRAGMENTS) * len(STREAMS) / 2 < best.trials
    again = simulate(layers, replace(fabric, straggle=0.0), tuned.scheme, steps=2)
    assert again.step_ns <= 1.05 * best.step_ns
