"""Certified bounds: what follows from prices holds in exact integers, whatever the prices are."""

from __future__ import annotations

import itertools
import math

import numpy as np

from strategy.ilp.certificate.bounds import least
from strategy.ilp.problem import Node, Problem
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.certified_bound import (
    certify_constant,
    certify_elimination,
    eliminate_priced,
    fixed_point_scales,
)
from strategy.ilp.solve.elimination import plan_elimination
from tests.strategy.ilp.certificate.proofs import view
from tests.strategy.ilp.solve.oracle import DILEMMA


def test_the_bound_of_a_price_is_that_worked_by_hand() -> None:
    core = build_core(DILEMMA)
    buckets = plan_elimination(core, max_cells=100)
    assert buckets is not None
    for price, bound in ((0.0, 0), (1.0, 2), (2.0, 4), (3.0, 1), (1.4, 3)):
        priced = eliminate_priced(core, buckets, np.array([price]))
        assert priced.lower_bound == bound == math.ceil(min(5 * price, 10) - 3 * price - 1e-9)
        assert least(view(core), certify_elimination(core, buckets, np.array([price])).proof) == bound


def test_choices_below_a_cost_are_those_that_may_cost_less() -> None:
    core = build_core(Problem("p", (Node("a", (3, 5, 9)), Node("b", (1, 2))), ()))
    found = certify_constant(core)
    assert found.lower_bound == core.constant == 4
    assert found.choices_below(100) == {}
    assert {node: kept.tolist() for node, kept in found.choices_below(7).items()} == {0: [0, 1]}
    assert {node: kept.tolist() for node, kept in found.choices_below(5).items()} == {0: [0], 1: [0]}


def test_scales_keep_sums_within_the_headroom() -> None:
    for magnitude, priced in itertools.product((1.0, 1e6, 1e17), (0.0, 1e-6, 1.0, 1e17)):
        bits, shift = fixed_point_scales(magnitude, priced)
        assert 0 <= bits <= shift
        assert bits == 0 or magnitude * 2.0**bits <= 2.0**58
        assert shift == bits or priced * 2.0**shift <= 2.0**58
