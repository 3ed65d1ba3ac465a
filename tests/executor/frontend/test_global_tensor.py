"""Global tensors: any layout gives what NumPy gives; a rank that strays is named; wrong input is told in full."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest

from executor.frontend.global_tensor import (
    GlobalTensor,
    broadcast,
    from_numpy,
    manual_seed,
    materialize,
    ones,
    partial_sum,
    placement,
    rand,
    randn,
    split,
    value_of,
    zeros,
)
from executor.frontend.world import World, current_world, use_world
from strategy.base.errors import GraphError, InputError, RunError
from strategy.nn.layers import Linear
from strategy.sbp.placement import Space
from strategy.sbp.sbp import NdSbp, Partial, Reduce, Split
from strategy.sbp.tensor import DType
from tests.executor.worlds import on_ranks
from tests.mpi.launch import run_ranks

S0, S1, B, P = split(0), split(1), broadcast, partial_sum


@pytest.mark.long
@pytest.mark.mpi
def test_the_matmul_of_the_global_view_page_under_mpi() -> None:
    assert run_ranks(4, "tests.mpi.global_view") == "4 ranks, 1 result\n"


def test_the_matmul_of_the_global_view_page_on_threads() -> None:
    from tests.mpi.global_view import two_placements

    first, *others = on_ranks(4, lambda world: two_placements())
    assert all(np.array_equal(first, other) for other in others)


def layouts(ranks: int) -> list[tuple[Any, NdSbp]]:
    """Placements of 4 ranks or fewer, each with a layout of a matrix."""
    single = [(placement(devices), (sbp,)) for devices in ([0, 1], [1, 2, 3], [0, 1, 2, 3]) for sbp in (S0, S1, B, P)]
    single += [(placement(devices, "host"), (sbp,)) for devices in ([0, 1], [1, 2, 3]) for sbp in (S0, S1, B, P)]
    grid = placement([[0, 1], [2, 3]])
    return [*single, *((grid, (one, other)) for one in (S0, S1, B, P) for other in (S0, S1, B, P))]


def test_every_conversion_between_any_two_placements_keeps_the_values() -> None:
    whole = np.arange(35, dtype=np.float64).reshape(7, 5)
    everywhere = layouts(4)
    pairs = random.Random(0).sample([(a, b) for a in everywhere for b in everywhere], 200)

    def code(world: World) -> None:
        for (here, before), (there, after) in pairs:
            tensor = from_numpy(whole, placement=here, sbp=before)
            moved = tensor.to_global(placement=there, sbp=after)
            assert (moved.placement, moved.sbp) == (there, after)
            assert (moved.piece is None) == (world.rank not in there.devices)
            np.testing.assert_array_equal(moved.numpy(), whole)

    on_ranks(4, code)


def test_hosts_hold_pieces_of_their_own() -> None:
    """What is brought to the hosts is computed on there; from both memories at once nothing is."""

    def code(world: World) -> None:
        here, hosts = placement([0, 1]), placement([0, 1], Space.HOST)
        x = from_numpy(np.ones((4, 6)), placement=here, sbp=S0)
        there = x.to_global(placement=hosts)
        assert (there.sbp, str(there)) == ((S0,), "float64[4, 6] S(0) on [0, 1] (hosts)")
        assert there.piece is not x.piece
        assert (there + there).placement == hosts
        places = "operands on several placements (got [0, 1] and [0, 1] (hosts))"
        with pytest.raises(GraphError, match=re.escape(places)):
            x + there

    on_ranks(2, code)


def test_arithmetic_is_numpys_in_every_layout() -> None:
    rng = np.random.default_rng(0)
    a, b, w = (rng.standard_normal(shape) for shape in ((6, 5), (6, 5), (5, 7)))
    mesh = placement([[0, 1], [2, 3]])
    choices = [(one, other) for one in (S0, S1, B, P) for other in (S0, S1, B, P)]
    drawn = random.Random(1).sample([(x, y, z) for x in choices for y in choices for z in choices], 25)

    def code(world: World) -> None:
        for one, two, three in drawn:
            x, y = (from_numpy(v, placement=mesh, sbp=sbp) for v, sbp in ((a, one), (b, two)))
            m = from_numpy(w, placement=mesh, sbp=three)
            for found, wanted in (
                (x + y, a + b),
                (x @ m, a @ w),
                ((x + y) @ m, (a + b) @ w),
                (x.T, a.T),
                (x.reshape((3, -1)), a.reshape(3, 10)),
            ):
                np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=1e-12)

    on_ranks(4, code)


@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16])
def test_random_numbers_do_not_depend_on_the_layout(dtype: DType) -> None:
    def code(world: World) -> list[np.ndarray]:
        found = []
        for where, sbp in layouts(4):
            if P not in sbp:
                manual_seed(3)
                found.append(randn(9, 5, placement=where, sbp=sbp, dtype=dtype).numpy())
                found.append(rand(9, 5, placement=where, sbp=sbp, dtype=dtype).numpy())
        return found

    found = on_ranks(4, code)[0]
    assert all(np.array_equal(numbers, found[i % 2]) for i, numbers in enumerate(found))
    assert found[0].dtype == dtype.numpy
    assert not np.array_equal(*found[:2])


def test_random_numbers_are_distributed_as_they_say() -> None:
    normal, uniform = randn(200, 100, placement=placement([0]), sbp=B), rand(40000, placement=placement([0]), sbp=B)
    again = randn(200, 100, placement=placement([0]), sbp=B)
    numbers = normal.numpy()
    assert abs(numbers.mean()) < 0.03
    assert abs(numbers.std() - 1) < 0.03
    assert abs((numbers**4).mean() - 3) < 0.3
    assert np.abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.03
    assert np.histogram(uniform.numpy(), 10, (0, 1))[0].min() > 3700
    assert not np.array_equal(numbers, again.numpy())


def test_constants_are_what_they_say_in_every_layout() -> None:
    def code(world: World) -> None:
        for where, sbp in layouts(4):
            np.testing.assert_array_equal(ones(6, 5, placement=where, sbp=sbp).numpy(), np.ones((6, 5)))
            np.testing.assert_array_equal(zeros(6, 5, placement=where, sbp=sbp).numpy(), np.zeros((6, 5)))

    on_ranks(4, code)


def test_pieces_are_copies_of_what_was_given() -> None:
    given = np.ones((4, 4))
    tensor = from_numpy(given, placement=placement([0]), sbp=B)
    given[...] = 0
    assert tensor.numpy().sum() == 16
    tensor.numpy()[...] = 0
    assert tensor.numpy().sum() == 16
    assert tensor.to_local() is tensor.piece


def test_a_rank_that_strays_is_named() -> None:
    where = placement([0, 1, 2])

    def code(world: World) -> str:
        x = ones(4, 4, placement=where, sbp=S0)
        with pytest.raises(RunError) as caught:
            x + x if world.rank != 1 else x @ x
        (x + x).numpy()
        return str(caught.value)

    for message in on_ranks(3, code):
        assert "the ranks do not do the same" in message
        assert re.search(r"rank 0, 2: add\(float32\[4, 4\] S\(0\) on \[0, 1, 2\], float32", message)
        assert "rank 1: matmul(float32[4, 4] S(0)" in message


@pytest.mark.parametrize("what", ["shape", "sbp", "values", "seed", "to_global"])
def test_metadata_that_differ_between_ranks_are_named(what: str) -> None:
    where = placement([0, 1])

    def code(world: World) -> None:
        odd = world.rank == 1
        if what == "shape":
            ones(4, 4 + odd, placement=where, sbp=S0)
        elif what == "sbp":
            ones(4, 4, placement=where, sbp=S1 if odd else S0)
        elif what == "values":
            from_numpy(np.full(4, float(odd)), placement=where, sbp=S0)
        elif what == "seed":
            manual_seed(world.rank)
        else:
            ones(4, 4, placement=where, sbp=S0).to_global(sbp=B if odd else S1)

    with pytest.raises(RunError, match=r"rank 0: .*\n  rank 1: "):
        on_ranks(2, code)


def test_wrong_operands_are_told_all_at_once() -> None:
    def code(world: World) -> tuple[str, ...]:
        x = ones(4, 5, placement=placement([0]), sbp=B)
        y = ones(4, 5, placement=placement([1]), sbp=B, dtype=DType.FLOAT64)
        with pytest.raises(GraphError) as caught:
            x + y
        return caught.value.problems

    problems = on_ranks(2, code)[0]
    assert len(problems) == 2
    assert "op add (operand 1, operand 2): operands on several placements (got [0] and [1]); use to_global" in problems
    assert "mixes dtypes" in problems[1]


def test_wrong_layouts_and_placements_are_refused() -> None:
    where, two = placement([0]), placement([0, 1])
    for message, code in (
        ("no such ranks", lambda: ones(4, placement=placement([0, 7]), sbp=B)),
        ("split beyond the dims", lambda: ones(4, placement=where, sbp=S1)),
        ("one SBP per mesh axis", lambda: ones(4, placement=where, sbp=[B, B])),
        ("random numbers cannot be partial", lambda: randn(4, placement=two, sbp=P)),
        ("terms of integers", lambda: ones(4, placement=where, sbp=P, dtype=DType.INT32)),
        ("a device stands twice", lambda: placement([1, 1])),
        ("rows of a placement differ", lambda: placement([[0, 1], [2]])),
        ("no dtype of tensors", lambda: from_numpy(np.ones(3, np.complex64), placement=where, sbp=B)),
        ("a new placement needs a layout", lambda: ones(4, placement=where, sbp=B).to_global(placement=two)),
        ("a dim is split into more parts", lambda: ones(1, placement=two, sbp=S0)),
    ):

        def run(world: World, code: Any = code, message: str = message) -> None:
            with pytest.raises(InputError, match=message):
                code()

        on_ranks(2, run)


def test_a_module_runs_line_by_line_as_it_is_traced() -> None:
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((6, 5)).astype(np.float32)

    def code(world: World) -> list[np.ndarray]:
        where = placement([0, 1])
        layer = Linear(5, 3)
        x = from_numpy(whole, placement=where, sbp=S0)
        with pytest.raises(GraphError, match=r"Linear.weight has no value yet; materialize"):
            layer(x)
        materialize(layer, placement=where, seed=1)
        y = layer(x)
        assert isinstance(y, GlobalTensor)
        assert y.sbp == (Split(0),)
        return [y.numpy(), value_of(layer.weight).numpy()]

    for found, weight in on_ranks(2, code):
        np.testing.assert_allclose(found, whole @ weight, atol=1e-6)
    with pytest.raises(InputError, match="no value yet"):
        value_of(Linear(2, 2).weight)


def test_tensors_of_halves_are_reduced_rounded_once_per_term() -> None:
    """Terms of bfloat16 that are exact sums, and a product that accumulates in float32."""

    def code(world: World) -> None:
        where = placement(range(4))
        x = ones(3, 512, placement=where, sbp=split(1), dtype=DType.BFLOAT16)
        w = ones(512, 2, placement=where, sbp=split(0), dtype=DType.BFLOAT16)
        y = x @ w
        assert y.sbp == (P,)
        assert (y.dtype, set(y.numpy().ravel().tolist())) == (DType.BFLOAT16, {512.0})
        assert y.cast(DType.FLOAT32).dtype is DType.FLOAT32
        assert from_numpy(y.numpy(), placement=where, sbp=B).dtype is DType.BFLOAT16

    on_ranks(4, code)


def test_maxima_have_their_neutral_element() -> None:
    def code(world: World) -> Any:
        most = from_numpy(np.arange(3.0), placement=placement([0, 1]), sbp=Partial(Reduce.MAX))
        return most.to_local()

    first, second = on_ranks(2, code)
    assert first.tolist() == [0, 1, 2]
    assert second.tolist() == [-np.inf] * 3


def test_alone_there_is_a_world_of_one_rank() -> None:
    assert current_world().size == 1
    world = World(current_world().transport)
    with use_world(world):
        assert current_world() is world
    assert current_world() is not world
