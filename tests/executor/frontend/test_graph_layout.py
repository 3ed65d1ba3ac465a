"""Code that says where and how: `to_global` and `pin` mean the same traced into a graph and line by line."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from executor.frontend.global_tensor import (
    broadcast,
    from_numpy,
    manual_seed,
    materialize,
    partial_sum,
    placement,
    split,
)
from executor.frontend.graph import Graph
from executor.frontend.world import World
from strategy.base.errors import GraphError, InputError
from strategy.nn.layers import Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor
from strategy.passes.training import Training
from strategy.program.program import ActKind
from strategy.sbp.placement import MOVES, Space
from strategy.sbp.sbp import Split
from strategy.sbp.tensor import DType
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


class ThroughHosts(Moved):
    """Two layers, between which the hosts compute."""

    def forward(self, *inputs: Any) -> Any:
        hidden = self.one(inputs[0]).to_global(placement=replace(self.there, space=Space.HOST), sbp=split(1))
        return self.two(hidden.gelu().to_global(placement=self.there, sbp=split(0)))


def test_hosts_compute_between_two_layers() -> None:
    """Forth and back over the link of device and host, gradients too; the same line by line."""
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((8, 4)), rng.integers(0, 3, 8).astype(np.int32)
    training = Training(8, lr=0.1, dtype=DType.FLOAT64)

    def losses(world: World, model: Moved, where: Any) -> list[float]:
        train = Train(model, placement=where, training=training)
        found = [float(train(x, labels).result().numpy()) for _ in range(5)]
        (compiled,) = train._compiled.values()
        graph = compiled.traced.graph
        on_hosts = [op.kind for op in graph.ops if graph.on_host(op)]
        moved = [op.kind for op in graph.ops if op.kind in MOVES]
        through = isinstance(model, ThroughHosts)
        assert on_hosts == (["gelu", "gelu_grad"] if through else [])
        assert sorted(moved) == (["to_device", "to_device", "to_host", "to_host"] if through else [])
        return found

    alone = on_ranks(1, lambda world: losses(world, Moved(None), [0]))[0]
    for found in on_ranks(4, lambda world: losses(world, ThroughHosts(P1), [P0, P1])):
        np.testing.assert_allclose(found, alone, rtol=1e-9)

    def line_by_line(world: World) -> None:
        rows = np.ones((8, 4), np.float32)
        manual_seed(3)
        materialize(plain := Moved(P0), placement=P0)
        manual_seed(3)
        materialize(through := ThroughHosts(P0), placement=P0)
        given = from_numpy(rows, placement=P0, sbp=split(0))
        np.testing.assert_allclose(plain(given).numpy(), through(given).numpy(), atol=1e-6)

    on_ranks(2, line_by_line)


class FromBoth(Graph):
    def build(self, x: Tensor) -> Any:
        there = x.to_global(placement=placement([0], "host"))
        return (x + there).gelu(), there


def test_an_op_reads_from_one_memory() -> None:
    def code(world: World) -> None:
        graph = FromBoth(placement=[0])
        both = "add reads from both memories (got x of the device, to_host of the host)"
        with pytest.raises(GraphError, match=re.escape(both)):
            graph(np.ones((2, 2), np.float32))
        with pytest.raises(InputError, match="a stage is on hosts"):
            FromBoth(placement=placement([0], "host"))(np.ones((2, 2), np.float32))
        with pytest.raises(InputError, match=r"no such memory .*got 'cuda', expected device or host"):
            placement([0], "cuda")

    on_ranks(1, code)


class Given(Graph):
    def build(self, x: Tensor) -> Any:
        return x.gelu().to_global(placement=placement([0, 1], "host"), sbp=split(1))


def test_what_a_graph_gives_on_hosts_is_there() -> None:
    def code(world: World) -> None:
        given = Given(placement=[0, 1], layouts={"x": split(0)})(np.ones((2, 4), np.float32)).result()
        assert (given.placement, given.sbp) == (placement([0, 1], "host"), (Split(1),))
        assert given.piece is not None
        assert given.piece.shape == (2, 2)
        assert given.numpy().shape == (2, 4)

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
        with pytest.raises(InputError, match="value copy_2: a stage is visited again"):
            Backwards(placement=[P0, P1])(np.ones((4, 6), np.float32))

    on_ranks(4, code)
