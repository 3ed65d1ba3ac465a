"""Chains: carried out on real pieces, and the cheapest by another method."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.base.budget import Budget
from strategy.base.errors import OutOfTimeError, SbpError
from strategy.comm.boxing import BoxingStep, layouts_of, step_between
from strategy.comm.chains import Boxing
from strategy.comm.rank_parts import boxing_task
from strategy.comm.sent_bytes import sent_nbytes
from strategy.program.program import ActKind
from strategy.sbp.sbp import (
    B,
    NdSbp,
    Owner,
    P,
    Partial,
    Reduce,
    Split,
)
from strategy.sbp.tensor import DType, Shape, TensorSpec
from tests.support.boxing_steps import (
    MESHES,
    SHAPES,
    carry_out,
    cells,
    every_step,
    mesh_of,
    most_sent_on,
    one_each,
    prices,
)
from tests.support.long_parameters import long_but
from tests.support.oracle import close, gather, scatter
from tests.support.step_prices import each


@pytest.mark.parametrize("mesh", long_but(((mesh,) for mesh in MESHES), 0, 3), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", long_but([0, 1], 0))
def test_every_chain_leads_where_it_should(mesh: Shape, shape: Shape, seed: int) -> None:
    spec, placement, rng = TensorSpec(shape, DType.FLOAT64), mesh_of(mesh), np.random.default_rng(seed)
    price = prices(seed)
    boxing = Boxing(placement, each(price))
    whole = np.asarray(rng.standard_normal(shape))
    for source, target in itertools.product(layouts_of(spec, mesh), repeat=2):
        pieces = dict(zip(placement.devices, scatter(whole, source, mesh, rng), strict=True))
        here, spent = source, 0.0
        for step in boxing.chain(spec, source, target):
            assert step_between(here, step.target) == step
            spent += price(spec, here, step)
            pieces = carry_out(pieces, spec, here, step, placement)
            here = step.target
        assert here == target
        assert spent == pytest.approx(boxing.seconds(spec, source, target))
        assert close(gather([pieces[r] for r in placement.devices], target, mesh), whole)


def test_chains_are_cheapest_by_another_method() -> None:
    """Bellman-Ford over the same steps."""
    spec, mesh = TensorSpec((12, 12)), (2, 2)
    for seed in range(3):
        boxing = Boxing(mesh_of(mesh), each(prices(seed)))
        layouts = layouts_of(spec, mesh)
        edges = [
            (source, step.target, prices(seed)(spec, source, step))
            for source, step in every_step(spec, mesh, shifts=())
        ]
        for source in layouts:
            best = dict.fromkeys(layouts, math.inf) | {source: 0.0}
            for _ in layouts:
                for here, there, seconds in edges:
                    best[there] = min(best[there], best[here] + seconds)
            assert {target: boxing.seconds(spec, source, target) for target in layouts} == pytest.approx(best)


def test_every_pair_of_layouts_is_joined() -> None:
    for mesh, shape in itertools.product(MESHES, SHAPES):
        spec = TensorSpec(shape)
        boxing = Boxing(mesh_of(mesh), each(one_each))
        for source, target in itertools.product(layouts_of(spec, mesh), repeat=2):
            assert math.isfinite(boxing.seconds(spec, source, target))


@pytest.mark.parametrize("mesh", [(3,), (3, 2)], ids=str)
def test_rotated_splits_are_joined_with_all_layouts(mesh: Shape) -> None:
    """By the cheapest chain; two rotations of one split by one step of their bytes."""
    spec, placement = TensorSpec((7, 8)), mesh_of(mesh)
    boxing, rng = Boxing(placement, each(most_sent_on(placement))), np.random.default_rng(0)
    whole = rng.standard_normal(spec.shape)
    ordered = layouts_of(spec, mesh)
    turned = [
        nd for nd in layouts_of(spec, mesh, special=[(Split(0, 2),)] + [()] * (len(mesh) - 1)) if nd not in ordered
    ]
    pairs = [
        *itertools.product(turned, ordered),
        *itertools.product(ordered, turned),
        *itertools.product(turned, turned),
    ]
    for source, target in pairs:
        pieces = dict(zip(placement.devices, scatter(whole, source, mesh, rng), strict=True))
        here = source
        for step in boxing.chain(spec, source, target):
            pieces = carry_out(pieces, spec, here, step, placement)
            here = step.target
        assert close(gather([pieces[r] for r in placement.devices], target, mesh), whole), (source, target)
    assert [step.kind for step in boxing.chain(spec, turned[0], (Split(0, 1), *turned[0][1:]))] == [ActKind.ROTATE]


def test_axes_of_one_kind_are_one_group() -> None:
    kinds: dict[tuple[NdSbp, NdSbp], ActKind] = {
        ((P, P), (B, B)): ActKind.ALL_REDUCE,
        ((P, P), (Split(0), Split(0))): ActKind.REDUCE_SCATTER,
        ((Split(0), Split(0)), (B, B)): ActKind.ALL_GATHER,
        ((Split(0), Split(1)), (Split(1), Split(0))): ActKind.ALL_TO_ALL,
        ((Split(0), B), (B, Split(0))): ActKind.ALL_TO_ALL,
    }
    for (source, target), kind in kinds.items():
        assert step_between(source, target) == BoxingStep(kind, (0, 1), target)
    spec, placement = TensorSpec((8, 8)), mesh_of((2, 4))
    chain = Boxing(placement, each(most_sent_on(placement))).chain(spec, (P, P), (B, B))
    assert [step.axes for step in chain] == [(0, 1)]


def test_a_regrouped_mesh_sends_only_what_ranks_lack() -> None:
    """From [2, 4] cut as (S(0), B) to (B, S(0)): what stays in place stays."""
    spec, placement = TensorSpec((8, 3)), mesh_of((2, 4))
    source, target = (Split(0), B), (B, Split(0))
    (step,) = Boxing(placement, each(most_sent_on(placement))).chain(spec, source, target)
    task = boxing_task(spec, source, step, placement, 0)
    lacking = 0
    for before, after in zip(task.source_boxes, task.target_boxes, strict=True):
        lacking += len(cells(after) - cells(before)) * 4
    assert lacking == 4 * 3 * 2 * 4
    assert sum(sent_nbytes(step.kind, task, rank, spec) for rank in task.group) == lacking


def test_nested_terms_of_another_reduction_are_combined_first() -> None:
    largest = Partial(Reduce.MAX)
    assert step_between((largest, P), (B, P)) is None
    assert step_between((largest, P), (B, B)) is None
    assert step_between((largest, P), (largest, B)) is not None
    assert step_between((P, P), (largest, P)) is None
    spec, boxing = TensorSpec((6, 6)), Boxing(mesh_of((2, 2)), each(one_each))
    chain = boxing.chain(spec, (largest, P), (B, B))
    assert [step.axes for step in chain] == [(1,), (0,)]
    assert [step.kind for step in boxing.chain(spec, (largest, B), (P, B))] == [ActKind.ALL_REDUCE, ActKind.SLICE]


def test_tables_know_maxima_only_where_they_are_asked_for() -> None:
    spec, boxing = TensorSpec((6, 6)), Boxing(mesh_of((2, 2)), each(one_each))
    boxing.seconds(spec, (P, B), (B, B))
    (small,) = boxing.tables[spec].values()
    assert not any(Partial(Reduce.MAX) in layout.nd_sbp for layout in small.index)
    boxing.seconds(spec, (Partial(Reduce.MAX), B), (B, B))
    assert len(boxing.tables[spec]) == 2
    with pytest.raises(SbpError, match="not a legal layout"):
        boxing.seconds(TensorSpec((6, 6), DType.INT32), (P, B), (B, B))


@given(data=st.data())
def test_chains_hold_on_random_meshes_and_shapes(data: st.DataObject) -> None:
    mesh = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), max_size=2)))
    spec, placement, rng = TensorSpec(shape, DType.FLOAT64), mesh_of(mesh), np.random.default_rng(0)
    layouts = layouts_of(spec, mesh)
    source, target = data.draw(st.sampled_from(layouts)), data.draw(st.sampled_from(layouts))
    whole = np.asarray(rng.standard_normal(shape))
    pieces = dict(zip(placement.devices, scatter(whole, source, mesh, rng), strict=True))
    here = source
    for step in Boxing(placement, each(one_each)).chain(spec, source, target):
        pieces = carry_out(pieces, spec, here, step, placement)
        here = step.target
    assert close(gather([pieces[r] for r in placement.devices], target, mesh), whole)


def test_tables_know_owners_only_where_they_are_asked_for() -> None:
    boxing = Boxing(mesh_of((2, 2)), each(one_each))
    boxing.chain(TensorSpec((4, 4)), (B, B), (Split(0), B))
    assert all(not owned for _, owned in boxing.tables[TensorSpec((4, 4))])
    chain = boxing.chain(TensorSpec((4, 4)), (P, Split(1)), (Owner(1), B))
    assert len(chain) == 2
    with pytest.raises(SbpError, match="not a legal layout"):
        boxing.chain(TensorSpec((4, 4)), (B, B), (Owner(2), B))


def test_prices_that_were_interrupted_are_asked_for_again() -> None:
    spec, mesh = TensorSpec((4, 4), DType.FLOAT64), (2, 2)
    asked, priced = 0, each(prices(0))

    def interrupted_once(*of: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise KeyboardInterrupt
        return priced(*of)

    boxing, layouts = Boxing(mesh_of(mesh), interrupted_once), list(layouts_of(spec, mesh))
    with pytest.raises(KeyboardInterrupt):
        boxing.all_seconds(spec, layouts, layouts)
    found = boxing.all_seconds(spec, layouts, layouts)
    assert np.array_equal(found, Boxing(mesh_of(mesh), priced).all_seconds(spec, layouts, layouts))


@pytest.mark.parametrize("takes_s", [0.0, 0.05])
def test_a_table_ends_with_the_time_and_is_made_when_it_is_asked_for_again(takes_s: float) -> None:
    """Before its steps are priced, and after that, while shortest paths are looked for."""
    spec, mesh, priced, asked = TensorSpec((4, 4)), (2, 2), each(prices(0)), 0

    def slow(*of: Any) -> Any:
        nonlocal asked
        asked += 1
        time.sleep(takes_s)
        return priced(*of)

    boxing, layouts = Boxing(mesh_of(mesh), slow), list(layouts_of(spec, mesh))
    with pytest.raises(OutOfTimeError):
        boxing.all_seconds(spec, layouts, layouts, Budget.of(takes_s / 2))
    assert asked == (takes_s > 0)
    assert np.isfinite(boxing.all_seconds(spec, layouts, layouts)).any()


def test_all_prices_at_once_are_those_of_each() -> None:
    """Also of maxima, rotated splits and owners, on either side and on both."""
    spec, placement = TensorSpec((6, 4)), mesh_of((2, 2))
    rare: list[NdSbp] = [(Partial(Reduce.MAX), B), (Split(0, 1), B), (B, Owner(0))]
    layouts = [*layouts_of(spec, placement.mesh)[::3], *rare]
    boxing = Boxing(placement, each(most_sent_on(placement)))
    found = boxing.all_seconds(spec, layouts, layouts)
    for (row, source), (column, target) in itertools.product(enumerate(layouts), repeat=2):
        assert found[row, column] == boxing.seconds(spec, source, target), (source, target)
    assert not found.diagonal().any()


def test_what_reaches_what_is_known_without_a_price() -> None:
    """As long as all layouts are usual ones; then by the steps, whatever these take."""
    spec, mesh, asked = TensorSpec((6, 4)), (2, 3), list[TensorSpec]()

    def endless(spec: TensorSpec, source: NdSbp, step: BoxingStep) -> float:
        asked.append(spec)
        return math.inf

    boxing, layouts = Boxing(mesh_of(mesh), each(endless)), list(layouts_of(spec, mesh))
    assert boxing.reaches(spec, layouts, layouts).all()
    assert not asked
    assert boxing.reaches(spec, [(B, B)], [(B, B), (Owner(0), B)]).tolist() == [[True, False]]
    assert asked
    assert np.array_equal(boxing.reaches(spec, layouts, layouts), np.eye(len(layouts), dtype=bool))


def test_where_every_step_is_without_price_no_chain_leads() -> None:
    boxing = Boxing(mesh_of((2,)), each(lambda *_: math.inf))
    assert boxing.chain(TensorSpec((4, 6)), (B,), (B,)) == ()
    with pytest.raises(SbpError) as refused:
        boxing.chain(TensorSpec((4, 6)), (Split(0),), (B,))
    said = "['S(0)'] to ['B'] of (4, 6)"
    assert str(refused.value) == f"no boxing leads there (got {said!r})"
