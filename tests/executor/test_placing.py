"""Code that says where and how: `to_global` and `pin` mean the same traced into a graph and line by line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from executor.global_tensor import broadcast, from_numpy, materialize, partial_sum, placement, split
from executor.graph import Graph
from executor.world import World
from strategy.errors import GraphError, InputError
from strategy.nn.layers import Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor
from strategy.passes.training import Training
from strategy.program import ActKind
from strategy.sbp import Split
from strategy.tensor import DType
from tests.executor.worlds import on_ranks

P0, P1 = placement([0, 1]), placement([2, 3])


class TwoPlacements(Graph):
    """The matmul of OneFlow's global-view page: A 4x5 in rows, B 5x8 whole on ranks 0 and 1; C 8x6 in columns."""

    def __init__(self) -> None:
        super().__init__(placement=[P0, P1], layouts={"a": split(0), "b": broadcast, "c": split(1)})

    def build(self, a: Tensor, b: Tensor, c: Tensor) -> Any:
        y = (a @ b).pin(split(0))
        z = y.to_global(placement=P1, sbp=broadcast) @ c
        return y, z


def factors() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 5), (5, 8), (8, 6))]


def test_the_matmul_of_the_global_view_page_is_a_graph_too() -> None:
    def code(world: World) -> None:
        graph, (a, b, c) = TwoPlacements(), factors()
        y, z = graph(a, b, c).result()
        assert (y.placement, y.sbp) == (P0, (Split(0),))
        assert (z.placement, z.sbp) == (P1, (Split(1),))
        assert (z.piece is None) == (world.rank < 2)
        assert z.piece is None or z.piece.shape == (4, 3)
        assert (y.piece is None) == (world.rank >= 2)
        np.testing.assert_allclose(z.numpy(), a @ b @ c, atol=1e-5)
        ya = from_numpy(a, placement=P0, sbp=split(0)) @ from_numpy(b, placement=P0, sbp=broadcast)
        za = ya.to_global(placement=P1, sbp=broadcast) @ from_numpy(c, placement=P1, sbp=split(1))
        assert (za.placement, za.sbp) == (z.placement, z.sbp)
        np.testing.assert_array_equal(za.numpy(), z.numpy())
        (compiled,) = graph._compiled.values()
        conversions = [(c.copy.value, [s.kind for s in c.steps]) for c in compiled.layout.conversions]
        assert conversions == [("matmul", [ActKind.TRANSFER])]

    on_ranks(4, code)


class Moved(Module):
    """Two layers, the second one elsewhere."""

    def __init__(self, there: Any) -> None:
        self.one = Linear(4, 6, std=0.5)
        self.two = Linear(6, 3, std=0.5)
        self.there = there

    def forward(self, *inputs: Any) -> Any:
        hidden = self.one(inputs[0]).gelu()
        return self.two(hidden if self.there is None else hidden.to_global(placement=self.there, sbp=split(0)))


class Train(Graph):
    def __init__(self, model: Module, **options: Any) -> None:
        super().__init__(**options)
        self.model = model

    def build(self, x: Tensor, labels: Tensor) -> Any:
        loss, count = cross_entropy(self.model(x), labels)
        self.minimize(loss, count)
        return loss


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_what_is_brought_to_a_stage_is_trained_there(micro_batches: int) -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((8, 4)), rng.integers(0, 3, 8).astype(np.int32)
    training = Training(8, num_micro_batches=micro_batches, lr=0.1, dtype=DType.FLOAT64)

    def losses(where: Any, there: Any) -> list[float]:
        train = Train(Moved(there), placement=where, training=training)
        found = [float(train(x, labels).result().numpy()) for _ in range(5)]
        homes = {name: tensor.placement for name, tensor in train.state_dict().items()}
        assert homes["model.two.weight"] == homes["model.two.weight:m"] == (there or placement(where))
        return found

    alone = on_ranks(1, lambda world: losses([0], None))[0]
    for found in on_ranks(4, lambda world: losses([P0, P1], P1)):
        np.testing.assert_allclose(found, alone, rtol=1e-9)
    assert alone[-1] < 0.8 * alone[0]


def test_line_by_line_it_is_the_same_module() -> None:
    def code(world: World) -> None:
        model, rows = Moved(None), np.ones((8, 4), np.float32)
        materialize(model, placement=P0)
        there = from_numpy(rows, placement=P0, sbp=split(0))
        whole = model(there).numpy()
        model.there = P0
        found = model(there)
        assert (found.placement, found.sbp) == (P0, (Split(0),))
        np.testing.assert_allclose(found.numpy(), whole, atol=1e-6)

    on_ranks(2, code)


class Rearranged(Graph):
    def build(self, x: Tensor) -> Any:
        return (x + x).to_global(sbp=split(1)).gelu()


def test_a_layout_alone_is_a_pin_of_a_copy() -> None:
    def code(world: World) -> None:
        graph = Rearranged(placement=[0, 1], layouts={"x": split(0)})
        x = np.ones((4, 6), np.float32)
        assert graph(x).result().sbp == (Split(1),)
        (compiled,) = graph._compiled.values()
        kinds = [s.kind for conversion in compiled.layout.conversions for s in conversion.steps]
        assert kinds == [ActKind.ALL_TO_ALL]
        other = Rearranged(placement=[0, 1], layouts={"x": split(0), "copy": broadcast})
        assert other(x).result().sbp != (Split(1),), "a pin given to the graph counts before that of the code"

    on_ranks(2, code)


class Astray(Graph):
    def build(self, x: Tensor) -> Any:
        return x.to_global(placement=P1, sbp=split(3)), x.to_global(placement=P0, sbp=partial_sum), (x + x) @ x


def test_a_place_that_is_no_stage_is_refused_with_all_else() -> None:
    def code(world: World) -> None:
        with pytest.raises(GraphError) as caught:
            Astray(placement=[0, 1])(np.ones((4, 6), np.float32))
        expected = (
            "op matmul (add, x): matmul shapes do not compose",
            "value copy: brought where the graph does not run (got '[2, 3] as (2,)', expected [0, 1] as (2,))",
            "[sbp] 'copy': value copy: split beyond the dims (got 'S(3)', expected a dim of (4, 6))",
        )
        assert len(caught.value.problems) == len(expected), caught.value.problems
        for problem, start in zip(caught.value.problems, expected, strict=True):
            assert problem.startswith(start), problem

    on_ranks(2, code)


class Backwards(Graph):
    def build(self, x: Tensor) -> Any:
        return x.to_global(placement=P1, sbp=split(0)).gelu().to_global(placement=P0, sbp=split(0))


def test_back_to_an_earlier_stage_is_refused() -> None:
    def code(world: World) -> None:
        with pytest.raises(InputError, match=r"against the pipeline.*copy_2|copy_2.*against the pipeline"):
            Backwards(placement=[P0, P1])(np.ones((4, 6), np.float32))

    on_ranks(4, code)
