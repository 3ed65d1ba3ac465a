"""Memory as the search counts it: never less than what credits hold in a simulated run."""

from __future__ import annotations

import itertools

import pytest

from simulator.engine import run
from simulator.memory_timeline import live_peaks_nbytes
from strategy.cost.cost import CostModel
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Phase, Role, Value
from strategy.graph.signature import Signature
from strategy.layout.arrangement import Pipeline, arrange
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import Stages
from strategy.lowering.lifetime_peak import lifetime_peaks
from strategy.lowering.lower import lower
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, NdSbp, Split
from strategy.sbp.tensor import Rate, TensorSpec
from tests.support.long_parameters import long_but
from tests.support.random_graphs import every_layout, random_case
from tests.support.small_plans import cluster


@pytest.mark.parametrize("first", long_but(range(0, 60, 15), 2))
def test_graphs_hold_no_more_than_their_lifetimes(first: int) -> None:
    compared = 0
    for seed in range(first, first + 15):
        case = random_case(seed, axes=1 + seed % 2, stages=1 + (seed % 5 == 4), most=30)
        phases = [list(Phase).index(op.phase) for op in case.graph.ops]
        if phases != sorted(phases):
            continue
        for priced in itertools.islice(every_layout(case), 4):
            arrangement = arrange(case.graph, priced.layout, case.pipeline)
            counted = lifetime_peaks(case.graph, case.stages, arrangement)
            program = lower(case.graph, priced.layout, case.pipeline, case.cost)
            found = live_peaks_nbytes(program, run(program, 2).timeline)
            firsts = [found[placement.devices[0]] for placement in case.stages.placements]
            assert all(f <= p for f, p in zip(firsts, counted, strict=True)), seed
            compared += 1
    assert compared >= 15


def test_collectives_that_overlap_make_copies_early() -> None:
    """The copy of `v` is there before the large tensors between `v` and its reader are gone."""
    builder = GraphBuilder()
    shapes = {"x": (64, 2), "narrow": (2, 32), "wide": (2, 64)}
    for name, shape in shapes.items():
        builder.declare(Value(name, TensorSpec(shape), Rate.MICRO_BATCH, Role.INPUT))
    builder.add("v", "matmul", ("x", "narrow"))
    builder.add("large", "matmul", ("x", "wide"))
    builder.add("larger", "gelu", ("large",))
    builder.add("sum", "reduce_sum", ("larger",), attrs={"axes": (0, 1), "keepdims": 0})
    builder.add("last", "gelu", ("v",))
    graph = builder.build()
    split, whole = (Split(0),), (B,)
    signatures = {op.name: _all(whole, len(op.inputs)) for op in graph.ops}
    signatures["v"] = Signature((split, whole), (split,))
    stages = Stages((Placement((0, 1), (2,), ("data",)),), dict.fromkeys(signatures, 0))
    cost = CostModel(cluster(2, backend="cupy"), {})
    layout = lay_out(graph, stages, signatures, Converter(cost, stages.placements))
    for overlaps in (False, True):
        pipeline = Pipeline(1, overlaps=overlaps)
        counted = lifetime_peaks(graph, stages, arrange(graph, layout, pipeline))
        program = lower(graph, layout, pipeline, cost)
        found = live_peaks_nbytes(program, run(program, 2).timeline)
        assert found[0] <= counted[0]


def _all(nd_sbp: NdSbp, inputs: int) -> Signature:
    return Signature((nd_sbp,) * inputs, (nd_sbp,))
