"""Graphs: compiled once, state shared without a copy, alike on one rank and on several."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from executor.frontend.global_tensor import (
    GlobalTensor,
    broadcast,
    from_numpy,
    materialize,
    ones,
    partial_sum,
    placement,
    split,
    value_of,
)
from executor.frontend.graph import Graph
from executor.frontend.world import World
from strategy.base.errors import GraphError, InfeasibleError, InputError, RunError
from strategy.graph.ops.learning_rate import Decay
from strategy.nn.layers import LayerNorm, Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Module, Parameter
from strategy.nn.tracer import Tensor
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, Split
from strategy.sbp.tensor import DType
from strategy.search.choose import ChooseSignatures, deduced, searched
from strategy.space.deduce import Deduction
from tests.executor.worlds import on_ranks
from tests.mpi.launch import run_ranks
from tests.mpi.shared_state import Evaluate, Mlp, Train, features, trained

BATCH = 8


@pytest.mark.parametrize("options", [{}, {"layouts": {"x": split(0), "labels": split(0)}}])
@pytest.mark.parametrize("choose", [deduced(Deduction.MATCH_ALL), searched])
def test_two_ranks_train_as_one_does(options: dict[str, Any], choose: ChooseSignatures) -> None:
    alone = on_ranks(1, lambda world: trained(placement([0])))[0]
    for losses in on_ranks(2, lambda world: trained(placement([0, 1]), choose=choose, **options)):
        np.testing.assert_allclose(losses, alone, rtol=1e-9)
    assert alone[-1] < 0.7 * alone[0]


@pytest.mark.mpi
def test_graphs_run_under_mpi() -> None:
    assert run_ranks(2, "tests.mpi.shared_state") == "2 ranks trained and evaluated alike\n"


def test_stages_micro_batches_and_meshes_train_alike() -> None:
    alone = on_ranks(1, lambda world: trained(placement([0])))[0]
    stages = [Placement((0,), (1,), ("0",)), Placement((1,), (1,), ("0",))]

    def piped(world: World) -> list[float]:
        return trained(stages, num_micro_batches=2, stages={"model.two.*": 1, "loss*": 1})

    for losses in on_ranks(2, piped):
        np.testing.assert_allclose(losses, alone, rtol=1e-9)
    mesh = placement([[0, 1], [2, 3]])
    pins = {"x": [split(0), broadcast], "labels": [split(0), broadcast], "*.one.weight": [broadcast, split(1)]}
    for losses in on_ranks(4, lambda world: trained(mesh, layouts=pins, num_micro_batches=2)):
        np.testing.assert_allclose(losses, alone, rtol=1e-9)


@pytest.mark.parametrize("choose", [deduced(Deduction.MATCH_ALL), searched])
def test_an_evaluation_sees_a_step_without_a_copy(choose: ChooseSignatures) -> None:
    """Weights live in columns for the training; the evaluation, laid out otherwise, reads the same memory."""

    def code(world: World) -> None:
        model, where = Mlp(), placement([0, 1])
        pins = {"*.one.weight": split(1), "*.two.bias": broadcast}
        train = Train(model, placement=where, training=Training(BATCH, dtype=DType.FLOAT64), layouts=pins)
        evaluate = Evaluate(model, placement=where, dtype=DType.FLOAT64, choose=choose, layouts={"x": split(0)})
        x, labels = features()
        train(x, labels)
        before = evaluate(x).result().numpy()
        own, shared = train.state_dict(), evaluate.state_dict()
        assert own["model.one.weight"].sbp == (Split(1),)
        assert set(shared) == {name for name, _ in evaluate.parameters()}
        assert set(own) - set(shared) == {f"{name}:{moment}" for name in shared for moment in "mv"}
        for name, tensor in shared.items():
            assert tensor.piece is own[name].piece
            assert tensor.piece is value_of(dict(evaluate.parameters())[name]).piece
        for worker, graph in ((train, "train"), (evaluate, "evaluate")):
            (compiled,) = worker._compiled.values()
            for name, tensor in shared.items():
                register = compiled.worker.registers.index(name)
                assert np.shares_memory(compiled.worker.registers.block(register, 0), tensor.piece), (graph, name)
        train(x, labels)
        after = evaluate(x).result().numpy()
        assert np.abs(after - before).max() > 1e-6
        np.testing.assert_allclose(after, by_hand(shared, x), atol=1e-12)

    on_ranks(2, code)


def by_hand(state: dict[str, GlobalTensor], x: np.ndarray) -> np.ndarray:
    hidden = x @ state["model.one.weight"].numpy() + state["model.one.bias"].numpy()
    hidden = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
    return hidden @ state["model.two.weight"].numpy() + state["model.two.bias"].numpy()


def test_an_evaluation_may_come_first_and_the_training_keeps_to_its_layout() -> None:
    def code(world: World) -> None:
        model, where = Mlp(), placement([0, 1])
        evaluate = Evaluate(model, placement=where, dtype=DType.FLOAT64, layouts={"*.one.weight": split(1)})
        train = Train(model, placement=where, training=Training(BATCH, dtype=DType.FLOAT64))
        x, labels = features()
        before = evaluate(x).result().numpy()
        pieces = {name: tensor.piece for name, tensor in evaluate.state_dict().items()}
        train(x, labels)
        assert train.state_dict()["model.one.weight"].sbp == (Split(1),)
        assert all(train.state_dict()[name].piece is piece for name, piece in pieces.items())
        assert np.abs(evaluate(x).result().numpy() - before).max() > 1e-6

    on_ranks(2, code)


def test_a_module_that_was_trained_runs_line_by_line_too() -> None:
    def code(world: World) -> None:
        model, where = Mlp(), placement([0, 1])
        materialize(model, placement=where, dtype=DType.FLOAT64, name="model.")
        first = value_of(model.one.weight).piece
        x, labels = features()
        train = Train(model, placement=where, training=Training(BATCH, dtype=DType.FLOAT64))
        train(x, labels)
        assert value_of(model.one.weight).piece is first
        there = from_numpy(x, placement=where, sbp=split(0))
        evaluate = Evaluate(model, placement=where, dtype=DType.FLOAT64)
        np.testing.assert_allclose(model(there).numpy(), evaluate(there).result().numpy(), atol=1e-12)

    on_ranks(2, code)


def test_it_is_compiled_once_per_input_signature() -> None:
    class Counted(Evaluate):
        def build(self, x: Tensor) -> Any:
            object.__setattr__(self, "builds", getattr(self, "builds", 0) + 1)
            return super().build(x)

    graph = Counted(Mlp(), placement=placement([0]), dtype=DType.FLOAT64)
    x, _ = features()
    for rows in (8, 8, 4, 8, 4):
        assert graph(x[:rows]).result().shape == (rows, 3)
    assert graph.builds == 2
    np.testing.assert_array_equal(graph(x).result().numpy()[:4], graph(x[:4]).result().numpy())


def test_steps_count_on_over_input_signatures() -> None:
    """The learning rate of a step follows from its number, whatever the type of its batch."""
    decaying = Training(
        BATCH, dtype=DType.FLOAT64, optimizer=Optimizer.SGD, decay=Decay.STEP, decay_steps=1, decay_factor=1e-6, lr=0.1
    )
    x, labels = features()
    graph = Train(Mlp(), placement=placement([0]), training=decaying)
    biases = [np.zeros(3)]
    for dtype in (np.int32, np.int64, np.int32, np.int64):
        graph(x, labels.astype(dtype))
        biases.append(graph.state_dict()["model.two.bias"].numpy())
    moves = [float(np.abs(after - before).max()) for before, after in itertools.pairwise(biases)]
    assert moves[0] > 1e-3
    assert max(moves[1:]) < 1e-5


def test_structure_of_what_build_returns_is_kept() -> None:
    class Several(Graph):
        def build(self, x: Tensor) -> Any:
            return {"sum": x + x, "both": (x.gelu(), [x @ x])}

    found = Several(placement=placement([0]))(np.eye(4, dtype=np.float32)).result()
    assert set(found) == {"sum", "both"}
    assert found["sum"].numpy().trace() == 8
    assert found["both"][1][0].numpy().trace() == 4


def test_a_partial_result_is_reduced_when_it_is_looked_at() -> None:
    class Product(Graph):
        def build(self, x: Tensor, y: Tensor) -> Any:
            return x @ y

    def code(world: World) -> None:
        graph = Product(placement=placement([0, 1]), layouts={"x": split(1), "y": split(0)})
        found = graph(np.ones((4, 6), np.float32), np.ones((6, 4), np.float32)).result()
        assert found.sbp == (partial_sum,)
        np.testing.assert_array_equal(found.numpy(), np.full((4, 4), 6.0))

    on_ranks(2, code)


class TwoHeads(Graph):
    """A second head reads what lies between, as in Inception."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.one, self.two, self.other = Linear(4, 6, std=0.5), Linear(6, 3, std=0.5), Linear(6, 3, std=0.5)

    def build(self, x: Tensor, labels: Tensor) -> Any:
        hidden = self.one(x).gelu()
        main, count = cross_entropy(self.two(hidden), labels, label="main")
        other, _ = cross_entropy(self.other(hidden), labels, label="other")
        self.minimize(main + 0.3 * other, count)
        return main, other


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_losses_add_up(micro_batches: int) -> None:
    training = Training(BATCH, num_micro_batches=micro_batches, lr=0.1, dtype=DType.FLOAT64)

    def losses(where: Any, **options: Any) -> np.ndarray:
        train = TwoHeads(placement=where, training=training, **options)
        steps = [train(*features()).result() for _ in range(5)]
        return np.array([[float(loss.numpy()) for loss in step] for step in steps])

    alone = on_ranks(1, lambda world: losses([0]))[0]
    assert (alone[-1] < 0.9 * alone[0]).all(), "both heads learn"
    for found in on_ranks(2, lambda world: losses([0, 1], layouts={"x": split(0)})):
        np.testing.assert_allclose(found, alone, rtol=1e-9)


class PinnedInCode(Module):
    def __init__(self) -> None:
        self.fc = Linear(4, 6)

    def forward(self, *inputs: Tensor) -> Any:
        return self.fc(inputs[0].pin(split(0))).gelu().pin(split(0))


def test_code_pins_what_it_wants_traced_or_not() -> None:
    def code(world: World) -> None:
        model, where = PinnedInCode(), placement([0, 1])
        graph = Evaluate(model, placement=where)
        x = np.ones((8, 4), np.float32)
        found = graph(x).result()
        assert found.sbp == (Split(0),)
        whole = model(from_numpy(x, placement=where, sbp=broadcast))
        assert whole.sbp == (Split(0),)
        np.testing.assert_array_equal(whole.numpy(), found.numpy())
        other = Evaluate(model, placement=where, layouts={"*.gelu": split(1), "*.bias_add": split(1), "x": broadcast})
        assert other(x).result().sbp == (Split(1),)

    on_ranks(2, code)


class Moody(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.training = True
        self.seen: list[bool] = []

    def forward(self, *inputs: Tensor) -> Any:
        self.seen.append(self.training)
        return super().forward(*inputs)


@pytest.mark.parametrize("mode", [True, False])
def test_modules_trace_for_what_the_graph_is_for(mode: bool) -> None:
    model = Moody()
    model.training = mode
    x, labels = features()
    Train(model, placement=[0], training=Training(BATCH, dtype=DType.FLOAT64))(x, labels)
    Evaluate(model, placement=[0], dtype=DType.FLOAT64)(x)
    assert model.seen == [True, False]
    assert model.training is mode


def test_ranks_without_a_part_look_on() -> None:
    def code(world: World) -> None:
        graph = Evaluate(Mlp(), placement=placement([1, 2]), dtype=DType.FLOAT64, layouts={"x": split(0)})
        x, _ = features()
        found = graph(x).result()
        assert (found.piece is None) == (world.rank in (0, 3))
        assert found.numpy().shape == (8, 3)

    on_ranks(4, code)


class Holder(Graph):
    def __init__(self, held: Any) -> None:
        super().__init__(placement=placement([0]))
        self.held = held

    def build(self, x: Tensor) -> Any:
        return x + x


def test_a_tensor_cannot_be_an_attribute() -> None:
    for tensor in (ones(4, placement=placement([0]), sbp=broadcast), Tensor(None, "x")):
        with pytest.raises(InputError, match=r"Holder\.held: a tensor cannot be an attribute of a graph.*Parameter"):
            Holder(tensor)
    assert Holder(3).held == 3


class Wrong(Module):
    def __init__(self) -> None:
        self.narrow = Linear(5, 4)
        self.norm = LayerNorm(3)

    def forward(self, *inputs: Tensor) -> Any:
        return self.narrow(inputs[0]), self.norm(inputs[0])


def test_every_mistake_of_a_graph_is_reported_at_once() -> None:
    class Faulty(Evaluate):
        def build(self, x: Tensor) -> Any:
            self.model(x)
            return x.reshape((7, 7)), x @ x

    with pytest.raises(GraphError) as caught:
        Faulty(Wrong(), placement=placement([0]))(np.ones((2, 4), np.float32))
    problems = caught.value.problems
    assert [problem.partition(" (")[0] for problem in problems] == [
        "op model.narrow.matmul",
        "op model.norm.norm",
        "op reshape",
        "op matmul",
    ]


def test_shapes_dtypes_pins_and_placements_are_reported_together() -> None:
    """All that is wrong with a graph comes in one report; each line has op or tensor, what was found, what expected."""

    class Faulty(Evaluate):
        def build(self, x: Tensor, ids: Tensor) -> Any:
            y = x.apply("product", "matmul", x)
            z = x.apply("mixed", "add", ids)
            return self.model(x), y.gelu(), z, (x + x).apply("sums", "reduce_nothing")

    graph = Faulty(
        Mlp(), placement=[[0, 0], [0, 7], [0]], layouts={"x": split(2), "*.one.weight": [split(0), broadcast]}
    )
    with pytest.raises(GraphError) as caught:
        graph(np.ones((2, 4), np.float32), np.ones((2, 4), np.int32))
    starts = (
        "op product (x, x): matmul shapes do not compose (got ((2, 4), (2, 4)), expected",
        "op mixed (x, ids): ",
        "op sums: unknown op kind (got 'reduce_nothing')",
        "a device stands twice in a placement (got (0, 0))",
        "placement: no such ranks (got [7], expected 0 to 0)",
        "placement: a rank is in two stages (got [0, 7, 0], expected each once)",
        "placement: stages differ in their mesh (got [(2,), (1,)], expected one mesh)",
        "[sbp] 'x': value x: split beyond the dims (got 'S(2)', expected a dim of (2, 4))",
        "[sbp] '*.one.weight': one SBP per mesh axis is needed (got ['S(0)', 'B'], expected 1)",
    )
    assert len(caught.value.problems) == len(starts), caught.value
    for problem, start in zip(caught.value.problems, starts, strict=True):
        assert problem.startswith(start), problem


def test_every_illegal_pin_of_a_graph_is_reported_at_once() -> None:
    with pytest.raises(GraphError) as caught:
        Evaluate(
            Mlp(),
            placement=[0],
            layouts={"y": split(0), "x": split(2), "*.one.bias": split(1)},
            stages={"nothing": 0},
        )(np.ones((8, 4), np.float32))
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (
            "says how to train, and minimizes nothing",
            lambda: Evaluate(Mlp(), **one(), training=Training(8, dtype=DType.FLOAT64))(features()[0]),
        ),
        ("minimizes, and says not how", lambda: Train(Mlp(), **one(), dtype=DType.FLOAT64)(*features())),
        ("an output that nothing computes", lambda: Identity(**one())(features()[0])),
        ("build returns something else.*int", lambda: Number(**one())(features()[0])),
        ("no dtype of tensors", lambda: Identity(**one())(np.ones(3, np.complex64))),
        ("no such ranks", lambda: Holding(placement=placement([0, 3]))(features()[0])),
        ("split beyond the dims", lambda: Holding(**one(), layouts={"x": split(7)})(features()[0])),
        ("the graph is not set up.*super", lambda: Bare()(features()[0])),
    ],
)
def test_misuse_is_said(message: str, code: Any) -> None:
    with pytest.raises(InputError, match=message):
        code()


def one() -> dict[str, Any]:
    return {"placement": placement([0])}


class Identity(Graph):
    def build(self, x: Tensor) -> Any:
        return x


class Holding(Graph):
    def build(self, x: Tensor) -> Any:
        return x + x


class Bare(Graph):
    def __init__(self) -> None:
        self.model = Mlp()


class Number(Graph):
    def build(self, x: Tensor) -> Any:
        return 3


def test_a_layout_that_no_signature_has_is_infeasible() -> None:
    def code(world: World) -> None:
        graph = Evaluate(Mlp(), placement=placement([0, 1]), dtype=DType.FLOAT64, layouts={"model.gelu": partial_sum})
        with pytest.raises(InfeasibleError, match=r"no legal signature of op model\.gelu"):
            graph(features()[0])

    on_ranks(2, code)


def test_state_elsewhere_is_refused() -> None:
    def code(world: World) -> None:
        model = Mlp()
        Evaluate(model, placement=placement([0]), dtype=DType.FLOAT64)(features()[0])
        with pytest.raises(InputError, match="state lies where the graph does not run"):
            Evaluate(model, placement=placement([1]), dtype=DType.FLOAT64)(features()[0])
        with pytest.raises(InputError, match="state of another type"):
            Evaluate(model, placement=placement([0]))(features()[0].astype(np.float32))

    on_ranks(2, code)


def test_ranks_that_call_another_graph_are_named() -> None:
    def code(world: World) -> None:
        graph = Holding(placement=placement([0, 1]))
        graph(np.ones((4, 4 + world.rank), np.float32))

    with pytest.raises(RunError, match=r"rank 0: Holding\(float32\[4, 4\]\)\n  rank 1: Holding\(float32\[4, 5\]\)"):
        on_ranks(2, code)


def test_parameters_are_told_apart_by_identity() -> None:
    assert Parameter((4,)) != Parameter((4,))
    assert broadcast == B
