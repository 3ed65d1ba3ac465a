"""What people write first, and what came of it: each works, or is answered by one message with the next step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from executor.frontend.global_tensor import (
    GlobalTensor,
    Tape,
    assign,
    broadcast,
    from_local,
    from_numpy,
    load_state_dict,
    manual_seed,
    materialize,
    placement,
    split,
    state_dict,
    value_of,
)
from executor.frontend.graph import Graph
from executor.frontend.world import World
from strategy.base.errors import GraphError, InputError
from strategy.models import find_model
from strategy.nn.layers import BatchNorm, Conv2d, Dropout, Linear, set_training
from strategy.nn.losses import cross_entropy, joint_loss
from strategy.nn.module import Module, Parameter
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.parameter_groups import ParameterGroup
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, Partial, Reduce, Split
from strategy.sbp.tensor import DType, TensorSpec
from tests.executor.worlds import on_ranks
from tests.mpi.launch import run_ranks

ROWS, WIDTH, CLASSES = 8, 4, 3
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS, WIDTH))
LABELS = RNG.integers(0, CLASSES, ROWS).astype(np.int32)


class Code(Module):
    """A module whose computation is a function of itself and its input."""

    def __init__(self, code: Callable[[Any, Any], Any], **attributes: Any) -> None:
        self.code = code
        vars(self).update(attributes)

    def forward(self, *inputs: Any) -> Any:
        return self.code(self, inputs[0])


class Fit(Graph):
    """Trains a model on classes."""

    def __init__(self, model: Module, **options: Any) -> None:
        super().__init__(**options)
        self.model = model

    def build(self, x: Tensor, labels: Tensor) -> Any:
        loss, count = cross_entropy(self.model(x), labels)
        self.minimize(loss, count)
        return loss


class Run(Graph):
    """Computes what it is given."""

    def __init__(self, code: Callable[..., Any], **options: Any) -> None:
        super().__init__(**options)
        self.code = code

    def build(self, *inputs: Tensor) -> Any:
        return self.code(self, *inputs)


def losses(make: Callable[[], Module], where: Any, steps: int = 4, **options: Any) -> list[float]:
    """Of a training on the rows above."""
    training = Training(ROWS, lr=0.05, dtype=DType.FLOAT64, **options.pop("training", {}))
    fit = Fit(make(), placement=where, training=training, **options)
    return [fit(X, LABELS).result().item() for _ in range(steps)]


def trains_alike(make: Callable[[], Module], **options: Any) -> list[float]:
    """Two ranks, rows split, train as one does, and the loss falls."""
    alone = on_ranks(1, lambda world: losses(make, 0, **options))[0]
    for found in on_ranks(2, lambda world: losses(make, [0, 1], layouts={"x": "S(0)"}, **options)):
        np.testing.assert_allclose(found, alone, rtol=1e-9)
    assert alone[-1] < alone[0]
    return alone


def answer(code: Callable[..., Any], *arrays: Any, ranks: int = 1, **options: Any) -> Any:
    """What a graph computes."""
    where = list(range(ranks))
    graph_options = {"placement": where, "dtype": DType.FLOAT64, **options}
    return on_ranks(ranks, lambda world: Run(code, **graph_options)(*arrays).result().numpy())[0]


# Modules


def test_a_module_called_twice() -> None:
    fc = lambda: Linear(WIDTH, WIDTH, std=0.5)  # noqa: E731
    trains_alike(lambda: Code(lambda m, x: m.head(m.fc(m.fc(x).tanh())), fc=fc(), head=Linear(WIDTH, CLASSES, std=0.5)))


def test_the_ops_of_a_second_call_are_called_so() -> None:
    tracer, block = Tracer(), Code(lambda m, x: m.fc(m.fc(x)), fc=Linear(4, 4))
    tracer.adopt(block, DType.FLOAT32)
    block(tracer.input("x", TensorSpec((2, 4))))
    names = [op.name for op in tracer.graph.ops]
    assert names == ["fc.matmul", "fc.bias_add", "fc.call_2.matmul", "fc.call_2.bias_add"]


def test_a_module_under_two_names() -> None:
    def tied() -> Module:
        fc = Linear(WIDTH, WIDTH, std=0.5)
        return Code(lambda m, x: m.head(m.two(m.one(x).tanh())), one=fc, two=fc, head=Linear(WIDTH, CLASSES, std=0.5))

    trains_alike(tied)


def test_a_list_of_layers() -> None:
    def deep(held: Sequence[Module]) -> Module:
        def code(m: Any, x: Any) -> Any:
            for layer in m.layers:
                x = layer(x).tanh()
            return m.head(x)

        return Code(code, layers=held, head=Linear(WIDTH, CLASSES, std=0.5))

    alone = trains_alike(lambda: deep([Linear(WIDTH, WIDTH, std=0.5) for _ in range(3)]))
    assert alone == trains_alike(lambda: deep(tuple(Linear(WIDTH, WIDTH, std=0.5) for _ in range(3))))
    names = [name for name, _ in deep([Linear(4, 4), Linear(4, 4)]).parameters()]
    assert names == ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "head.weight", "head.bias"]


def test_a_dict_of_layers() -> None:
    def forked() -> Module:
        heads = {"left": Linear(WIDTH, CLASSES, std=0.5), "right": Linear(WIDTH, CLASSES, std=0.5)}
        return Code(lambda m, x: m.heads["left"](x) * m.heads["right"](x), heads=heads)

    trains_alike(forked)
    assert [name for name, _ in forked().parameters()][::2] == ["heads.left.weight", "heads.right.weight"]


def test_a_list_of_parameters() -> None:
    weights = lambda: [Parameter((WIDTH, CLASSES), "normal(0.5)") for _ in range(2)]  # noqa: E731
    trains_alike(lambda: Code(lambda m, x: x @ m.weights[0] + x @ m.weights[1], weights=weights()))


# Operands


def test_a_parameter_is_an_operand() -> None:
    def affine() -> Module:
        return Code(lambda m, x: x @ m.w + m.b, w=Parameter((WIDTH, CLASSES), "normal(0.5)"), b=Parameter((CLASSES,)))

    trains_alike(affine)
    with pytest.raises(GraphError, match=r"a parameter of \[4, 3\] does not belong to the module that is traced; hold"):
        losses(lambda: Code(lambda m, x: x @ Parameter((WIDTH, CLASSES))), 0)


def test_a_parameter_may_stand_first() -> None:
    trains_alike(lambda: Code(lambda m, x: (m.w @ x.T).T, w=Parameter((CLASSES, WIDTH), "normal(0.5)")))


@pytest.mark.parametrize("code", [lambda g, x: x + np.ones(4), lambda g, x: np.ones(4) + x, lambda g, x: x @ np.eye(4)])
def test_an_array_is_no_operand_of_a_graph(code: Any) -> None:
    with pytest.raises(
        InputError, match=r"not an operand .*got 'ndarray'.*give an array to build as an input, or hold"
    ):
        answer(code, X)


def test_an_array_is_no_operand_line_by_line() -> None:
    x = from_numpy(X, placement=placement(0), sbp=broadcast)
    for code in (lambda: x + X, lambda: X + x, lambda: X * x, lambda: x - X):
        with pytest.raises(InputError, match=r"line by line, from_numpy\(\)"):
            code()


def test_numbers_of_numpy_are_numbers() -> None:
    np.testing.assert_allclose(answer(lambda g, x: np.float32(2) * x + np.int64(1), X), 2 * X + 1)


def test_reshape_takes_dims_in_a_row() -> None:
    np.testing.assert_array_equal(answer(lambda g, x: x.reshape(2, 16), X), X.reshape(2, 16))
    np.testing.assert_array_equal(answer(lambda g, x: x.reshape(2, -1), X, ranks=2), X.reshape(2, -1))
    with pytest.raises(InputError, match=r"not dims .*whole numbers, in a row or in one tuple"):
        answer(lambda g, x: x.reshape(2, 16.0), X)


def test_transpose_swaps_two_dims() -> None:
    whole = X.reshape(2, 4, 4)
    np.testing.assert_array_equal(answer(lambda g, x: x.transpose(0, 1), whole), whole.swapaxes(0, 1))
    np.testing.assert_array_equal(answer(lambda g, x: x.transpose(0, 1), X, ranks=2), X.T)
    np.testing.assert_array_equal(answer(lambda g, x: x.transpose(-1, 0), whole), whole.swapaxes(0, 2))
    np.testing.assert_array_equal(answer(lambda g, x: x.transpose(2, 0, 1), whole), whole.transpose(2, 0, 1))
    with pytest.raises(InputError, match="no such dims"):
        answer(lambda g, x: x.transpose(0, 3), X)


def test_comparisons_are_ones_and_zeros() -> None:
    y = np.roll(X, 1, axis=0)
    np.testing.assert_array_equal(answer(lambda g, x, y: x > y, X, y, ranks=2), y < X)
    np.testing.assert_array_equal(answer(lambda g, x: (x >= 0).where(x, 0), X, ranks=2), np.maximum(X, 0))
    np.testing.assert_array_equal(answer(lambda g, x: x < 0, X), X < 0)
    np.testing.assert_array_equal(answer(lambda g, x: x != 0, X), X != 0)


def test_equality_is_by_element() -> None:
    ids = np.array([1, 2, 3], np.int32)
    np.testing.assert_array_equal(answer(lambda g, x, y: x == y, ids, np.array([1, 0, 3], np.int32)), [1, 0, 1])
    one = from_numpy(ids, placement=placement(0), sbp=broadcast)
    np.testing.assert_array_equal((one == one).numpy(), [1, 1, 1])


def test_powers() -> None:
    positive = np.abs(X) + 0.5
    for exponent in (2, 3, 0.5, -1, -0.5):
        np.testing.assert_allclose(answer(lambda g, x, p=exponent: x**p, positive, ranks=2), positive**exponent)
    with pytest.raises(InputError, match="not an exponent"):
        answer(lambda g, x: x**x, X)
    trains_alike(lambda: Code(lambda m, x: m.fc(x) ** 3, fc=Linear(WIDTH, CLASSES, std=0.5)))


def test_item() -> None:
    x = from_numpy(X, placement=placement(0), sbp=broadcast)
    assert [x.sum().item(), float(x.sum())] == pytest.approx([X.sum()] * 2)
    with pytest.raises(InputError, match=r"several elements is no number .*reduce it first"):
        x.item()
    with pytest.raises(InputError, match="a traced tensor has no number yet; return it from build"):
        answer(lambda g, x: x * x.sum().item(), X)


def test_square_in_a_training_build() -> None:
    class Squares(Graph):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.fc = Linear(WIDTH, CLASSES, std=0.5)

        def build(self, x: Tensor, labels: Tensor) -> Any:
            loss, count = cross_entropy(self.fc(x).square(), labels)
            self.minimize(loss, count)
            return loss, x.square().sum()

    graph = Squares(placement=0, training=Training(ROWS, dtype=DType.FLOAT64))
    assert graph(X, LABELS).result()[1].item() == pytest.approx((X**2).sum())


@pytest.mark.parametrize("word", ["square", "clip", "report", "step", "learning_rate"])
def test_names_of_a_step_are_no_names_of_inputs(word: str) -> None:
    class Named(Graph):
        def _input_names(self, count: int) -> list[str]:
            return [word]

        def build(self, *inputs: Tensor) -> Any:
            return inputs[0].sum()

    with pytest.raises(GraphError, match=f"input {word}: a value of every training step is called so; call it other"):
        Named(placement=0)(X)


def test_every_name_of_a_step_is_reserved() -> None:
    from strategy.graph.builder import OF_A_STEP
    from strategy.passes.training import training_graph

    model = find_model("gpt-tiny")
    trained = training_graph(model, Training(4, skip_nonfinite=True))
    own = {op.name for op in trained.ops if not op.origin and not op.parameter and op.phase == "update"}
    assert {name for name in own if ":" not in name} == OF_A_STEP


def test_if_tensor() -> None:
    with pytest.raises(InputError, match=r"neither true nor false while a graph is traced .*condition.where\(x, y\)"):
        answer(lambda g, x: x if x.sum() > 0 else -x, X)
    assert bool(from_numpy(np.ones(1), placement=placement(0), sbp=broadcast))


class Means(Fit):
    """Gives a mean over what it sees."""

    def build(self, x: Tensor, labels: Tensor) -> Any:
        loss, count = cross_entropy(self.model(x), labels)
        self.minimize(loss, count)
        return loss / x.shape[0]


def test_a_mean_over_a_micro_batch_is_refused() -> None:
    def fit(**training: Any) -> Any:
        options = {"placement": 0, "training": Training(ROWS, dtype=DType.FLOAT64, **training)}
        return Means(Linear(WIDTH, CLASSES), **options)(X, LABELS).result().item()

    assert fit() == pytest.approx(np.log(3), abs=0.1)
    with pytest.raises(GraphError, match=r"op scale: a mean over the samples of a micro-batch .*divide result\(\) by"):
        fit(num_micro_batches=2)


def test_a_sum_over_a_fixed_number_is_fine() -> None:
    class Fixed(Fit):
        def build(self, x: Tensor, labels: Tensor) -> Any:
            return super().build(x, labels) / ROWS

    options = {"placement": 0, "training": Training(ROWS, num_micro_batches=4, dtype=DType.FLOAT64)}
    assert Fixed(Linear(WIDTH, CLASSES), **options)(X, LABELS).result().item() == pytest.approx(np.log(3), abs=0.1)


# Training


def test_a_second_minimize() -> None:
    class Twice(Fit):
        def build(self, x: Tensor, labels: Tensor) -> Any:
            loss, count = cross_entropy(self.model(x), labels)
            self.minimize(loss, count)
            self.minimize(loss, count)

    class Joint(Fit):
        def build(self, x: Tensor, labels: Tensor) -> Any:
            logits = self.model(x)
            loss, count = cross_entropy(logits, labels)
            self.minimize(joint_loss(loss, {"size": (logits.square().sum(), 0.1)}, label="total"), count)
            return loss

    with pytest.raises(InputError, match=r"Twice: minimize is called twice .*add shares .*joint_loss"):
        Twice(Linear(WIDTH, CLASSES), placement=0, training=Training(ROWS, dtype=DType.FLOAT64))(X, LABELS)
    joint = Joint(Linear(WIDTH, CLASSES), placement=0, training=Training(ROWS, dtype=DType.FLOAT64))
    assert joint(X, LABELS).result().item() > 0


def test_a_wrong_global_batch() -> None:
    with pytest.raises(InputError, match=r"input x: not the global batch .*Training\(global_batch=...\) of the rows"):
        Fit(Linear(WIDTH, CLASSES), placement=0, training=Training(6, dtype=DType.FLOAT64))(X, LABELS)


def test_parameter_groups() -> None:
    groups = (ParameterGroup(("*.bias",), lr_scale=0.0), ParameterGroup(("*.two.*",), lr_scale=0.1, optimizer="sgd"))

    def net() -> Module:
        one, two = Linear(WIDTH, 5, std=0.5), Linear(5, CLASSES, std=0.5)
        return Code(lambda m, x: m.two(m.one(x).tanh()), one=one, two=two)

    assert trains_alike(net, training={"groups": groups}) != trains_alike(net)

    def moved(world: World) -> dict[str, Any]:
        fit = Fit(net(), placement=0, training=Training(ROWS, lr=0.05, dtype=DType.FLOAT64, groups=groups))
        fit(X, LABELS)
        return {name: tensor.numpy() for name, tensor in fit.state_dict().items()}

    found = on_ranks(1, moved)[0]
    assert not found["model.one.bias"].any()
    assert "model.one.weight:m" in found
    assert "model.two.weight:velocity" in found
    wrong = {"groups": (ParameterGroup(("model.one.biass",)),)}
    with pytest.raises(
        InputError, match=r"parameter group: a pattern matches no parameter .*did you mean 'model.one.bi"
    ):
        losses(net, 0, training=wrong)
    with pytest.raises(InputError, match=r"unknown optimizer .*did you mean 'adamw'"):
        Training(ROWS, groups=(ParameterGroup(("*",), optimizer="adamww"),))


def test_an_optimiser_of_ones_own() -> None:
    """Momentum written line by line is what the graph's is."""

    def by_hand(world: World) -> list[float]:
        where = placement([0, 1] if world.size > 1 else 0)
        model = Linear(WIDTH, CLASSES, std=0.5)
        materialize(model, placement=where, dtype=DType.FLOAT64, name="model.")
        x, labels = (from_numpy(a, placement=where, sbp=split(0)) for a in (X, LABELS))
        parameters = [parameter for _, parameter in model.parameters()]
        velocity: dict[Parameter, GlobalTensor] = {}
        found = []
        for _ in range(4):
            with Tape() as tape:
                loss, count = cross_entropy(model(x), labels)
                mean = loss / count.detach()
            for parameter, gradient in zip(parameters, tape.gradients(mean, parameters), strict=True):
                before = velocity.get(parameter)
                velocity[parameter] = gradient if before is None else before * 0.9 + gradient
                assign(parameter, value_of(parameter) - velocity[parameter] * 0.05)
            found.append(loss.item())
        return found

    rule = {"optimizer": Optimizer.SGD, "weight_decay": 0.0, "max_norm": float("inf")}
    alone = on_ranks(1, by_hand)[0]
    graph = on_ranks(1, lambda world: losses(lambda: Linear(WIDTH, CLASSES, std=0.5), 0, training=rule))[0]
    np.testing.assert_allclose(alone, graph, rtol=1e-12)
    for found in on_ranks(2, by_hand):
        np.testing.assert_allclose(found, alone, rtol=1e-9)


def test_state_dict() -> None:
    """A training goes on from what another one wrote, bit for bit; names that do not fit are told."""

    def net() -> Module:
        return Linear(WIDTH, CLASSES, std=0.5)

    def code(world: World) -> None:
        options = {"placement": [0, 1], "training": Training(ROWS, lr=0.05, dtype=DType.FLOAT64)}
        first = Fit(net(), **options)
        whole = [first(X, LABELS).result().item() for _ in range(2)]
        saved = {name: tensor.numpy() for name, tensor in first.state_dict().items()}
        whole += [first(X, LABELS).result().item() for _ in range(2)]
        second = Fit(net(), **options)
        second.load_state_dict(saved, step=2)
        assert [second(X, LABELS).result().item() for _ in range(2)] == whole[2:]
        second.load_state_dict(saved, step=2)
        assert [second(X, LABELS).result().item() for _ in range(2)] == whole[2:]
        model = net()
        with pytest.raises(InputError, match="no value yet"):
            load_state_dict(model, {"weight": np.zeros((WIDTH, CLASSES)), "bias": np.zeros(CLASSES)})
        materialize(model, placement=placement([0, 1]), dtype=DType.FLOAT64)
        load_state_dict(model, {"weight": saved["model.weight"], "bias": saved["model.bias"]})
        np.testing.assert_array_equal(state_dict(model)["weight"].numpy(), saved["model.weight"])
        with pytest.raises(GraphError) as caught:
            load_state_dict(model, {"weihht": np.zeros(1), "bias": np.zeros(4)})
        told = "\n".join(caught.value.problems)
        assert "weight: nothing is given for it" in told
        assert "weihht: there is no such tensor; did you mean 'weight'?" in told
        assert "bias: another shape (got (4,), expected (3,))" in told

    on_ranks(2, code)


def test_outputs_of_all_micro_batches() -> None:
    class Logits(Fit):
        def build(self, x: Tensor, labels: Tensor) -> Any:
            logits = self.model(x)
            self.minimize(*cross_entropy(logits, labels))
            return logits

    training = Training(ROWS, num_micro_batches=2, dtype=DType.FLOAT64)
    with pytest.raises(InputError, match=r"a piece per micro-batch .*a graph without training="):
        Logits(Linear(WIDTH, CLASSES), placement=0, training=training)(X, LABELS)


# Layouts


def test_split_over_an_axis_of_one_rank() -> None:
    graph = Run(lambda g, x: x + x, placement=[[0]], layouts={"input_0": split(0)})
    np.testing.assert_array_equal(graph(X).result().numpy(), 2 * X)
    with pytest.raises(InputError, match="split beyond the dims"):
        Run(lambda g, x: x + x, placement=0, layouts={"input_0": split(2)})(X)


def test_layouts_as_text() -> None:
    def code(world: World) -> None:
        x = from_numpy(X, placement=placement([0, 1]), sbp="S(0)")
        assert x.sbp == (Split(0),)
        assert x.to_global(sbp="B").sbp == (B,)
        graph = Run(lambda g, x: (x + x).pin("S(1)"), placement=[0, 1], layouts={"input_0": "S(1)"})
        assert graph(X).result().sbp == (Split(1),)

    on_ranks(2, code)
    with pytest.raises(InputError, match=r"not an SBP \(got 'S0', expected \"S\(dim\)\""):
        from_numpy(X, placement=placement(0), sbp="S0")


@pytest.mark.long
def test_placements_of_one_rank_and_of_three_axes() -> None:
    assert placement(0) == placement([0])
    cube = placement([[[0, 1], [2, 3]], [[4, 5], [6, 7]]])
    assert (cube.devices, cube.mesh) == (tuple(range(8)), (2, 2, 2))

    def code(world: World) -> Any:
        x = from_numpy(X, placement=cube, sbp=[split(0), split(1), broadcast])
        return (x @ x.T).numpy()

    np.testing.assert_allclose(on_ranks(8, code)[0], X @ X.T)


@pytest.mark.parametrize("wrong", [[], [[]], [[0, 1], [2]], ["a"], [0.5]])
def test_a_placement_without_ranks_or_of_none(wrong: Any) -> None:
    message = "a placement without ranks|rows of a placement differ in length|no ranks"
    with pytest.raises(InputError, match=message):
        placement(wrong)
    if wrong == []:
        with pytest.raises(InputError, match=r"a placement without ranks .*such as \[0, 1\]"):
            Run(lambda g, x: x + x, placement=wrong)(X)


def test_stages_of_unequal_size() -> None:
    with pytest.raises(InputError, match=r"stages differ in their mesh .*give every stage as many ranks"):
        on_ranks(3, lambda world: Run(lambda g, x: x + x, placement=[[0, 1], [2]])(X))


def test_stages_that_overlap() -> None:
    with pytest.raises(InputError, match=r"a rank is in two stages .*a mesh of several axes is one placement"):
        on_ranks(3, lambda world: Run(lambda g, x: x + x, placement=[[0, 1], [1, 2]])(X))


def test_a_stage_that_is_visited_again() -> None:
    there, back = Placement((1,), (1,), ("0",)), Placement((0,), (1,), ("0",))

    def code(world: World) -> Any:
        away = lambda g, x: (x + x).to_global(placement=there, sbp=broadcast) * 2  # noqa: E731
        home = lambda g, x: away(g, x).to_global(placement=back, sbp=broadcast) + x  # noqa: E731
        return Run(home, placement=[back, there])(X).result().numpy()

    with pytest.raises(
        InputError, match=r"value copy_2: a stage is visited again .*bring what is read later to the later"
    ):
        on_ranks(2, code)


def test_integers_are_partial_maxima() -> None:
    most = Partial(Reduce.MAX)

    def code(world: World) -> Any:
        ids = from_numpy(np.arange(4, dtype=np.int32), placement=placement([0, 1]), sbp=most)
        return ids.to_local().tolist(), ids.numpy().tolist(), (ids.max().item())

    assert on_ranks(2, code)[1] == ([np.iinfo(np.int32).min] * 4, [0, 1, 2, 3], 3)
    with pytest.raises(InputError, match=r"terms of integers .*expected B, S, P\(max\) or P\(min\) of int32"):
        from_numpy(np.arange(4, dtype=np.int32), placement=placement(0), sbp="P")


@pytest.mark.parametrize("typo", ["*.wweight", "model.wegiht", "*wght", "*.biass"])
def test_a_pin_with_a_typo(typo: str) -> None:
    with pytest.raises(InputError) as caught:
        Fit(Linear(WIDTH, CLASSES), placement=0, training=Training(ROWS, dtype=DType.FLOAT64), layouts={typo: "B"})(
            X, LABELS
        )
    assert f"did you mean 'model.{'bias' if 'bias' in typo else 'weight'}'?" in str(caught.value)
    assert len(str(caught.value)) < 120


def test_a_pin_that_is_like_nothing_names_a_few() -> None:
    training = Training(ROWS, dtype=DType.FLOAT64)
    with pytest.raises(InputError, match=r"there are .* and \d+ more"):
        Fit(Linear(WIDTH, CLASSES), placement=0, training=training, layouts={"zzz*": "B"})(X, LABELS)


# Line by line


def lines(make: Callable[[], Module], x: Any, where: Placement, **options: Any) -> np.ndarray:
    """What a module gives, line by line."""
    model = make()
    materialize(model, placement=where, **options)
    return model(from_numpy(x, placement=where, sbp=split(0))).numpy()


def test_gpt_tiny_line_by_line() -> None:
    ids = RNG.integers(0, 256, (4, 128)).astype(np.int32)

    def code(world: World) -> list[float]:
        where = placement([0, 1] if world.size > 1 else 0)
        model = find_model("gpt-tiny").module()
        materialize(model, placement=where)
        tensors = (from_numpy(a, placement=where, sbp=split(0)) for a in (ids, np.roll(ids, -1, 1)))
        return [tensor.item() for tensor in model(*tensors)]

    alone = on_ranks(1, code)[0]
    assert alone == [pytest.approx(512 * np.log(256), rel=0.02), 512]
    for found in on_ranks(2, code):
        np.testing.assert_allclose(found, alone, rtol=1e-6)


IMAGES = RNG.standard_normal((4, 3, 6, 6))


def test_conv2d_line_by_line() -> None:
    def make() -> Module:
        return Conv2d(3, 4, (3, 3), padding=(1, 1))

    def code(world: World) -> np.ndarray:
        return lines(make, IMAGES, placement([0, 1] if world.size > 1 else 0), dtype=DType.FLOAT64)

    alone = on_ranks(1, code)[0]
    assert alone.shape == (4, 4, 6, 6)
    np.testing.assert_allclose(on_ranks(2, code)[1], alone, atol=1e-12)


def test_batch_norm_line_by_line() -> None:
    def code(world: World) -> list[np.ndarray]:
        where, norm = placement([0, 1] if world.size > 1 else 0), BatchNorm(3)
        materialize(norm, placement=where, dtype=DType.FLOAT64)
        x = from_numpy(IMAGES, placement=where, sbp=split(0))
        trained = norm(x).numpy()
        set_training(norm, False)
        return [trained, norm(x).numpy(), value_of(norm.running_mean).numpy(), value_of(norm.running_variance).numpy()]

    trained, evaluated, mean, variance = alone = on_ranks(1, code)[0]
    np.testing.assert_allclose(trained.mean((0, 2, 3)), 0, atol=1e-12)
    np.testing.assert_allclose(mean, 0.1 * IMAGES.mean((0, 2, 3)), atol=1e-12)
    np.testing.assert_allclose(variance, 0.9 + 0.1 * IMAGES.var((0, 2, 3), ddof=1), atol=1e-12)
    assert np.abs(evaluated - trained).max() > 0.1
    for one, other in zip(on_ranks(2, code)[1], alone, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_dropout_line_by_line() -> None:
    def code(world: World) -> list[np.ndarray]:
        where = placement([0, 1] if world.size > 1 else 0)
        manual_seed(3)
        drop, x = Dropout(0.5), from_numpy(np.ones((8, 64)), placement=where, sbp=split(0))
        with Tape() as tape:
            y = drop(x)
            loss = (y * y).sum()
        (slope,) = tape.gradients(loss, [x])
        return [y.numpy(), drop(x).numpy(), slope.numpy()]

    once, again, slope = alone = on_ranks(1, code)[0]
    assert set(np.unique(once)) == {0.0, 2.0}
    assert 0.4 < (once == 0).mean() < 0.6
    assert (once != again).any()
    np.testing.assert_array_equal(slope, 2 * once * once)
    for one, other in zip(on_ranks(2, code)[1], alone, strict=True):
        np.testing.assert_array_equal(one, other)


class Eye(Module):
    """A small network of images: everything that is trained line by line."""

    def __init__(self) -> None:
        self.conv = Conv2d(3, 4, (3, 3), padding=(1, 1))
        self.norm = BatchNorm(4)
        self.drop = Dropout(0.1)
        self.heads = {"classes": Linear(4, CLASSES, std=0.5)}

    def forward(self, *inputs: Any) -> Any:
        x = self.drop(self.norm(self.conv(inputs[0])).relu())
        return self.heads["classes"](x.mean((2, 3)) ** 2)


def trained_by_line(where: Placement, steps: int = 4) -> list[float]:
    """Losses, and the norm of all parameters at the end."""
    manual_seed(1)
    model = Eye()
    materialize(model, placement=where, dtype=DType.FLOAT64)
    trained = [p for name, p in model.parameters() if "running" not in name]
    x = from_numpy(IMAGES, placement=where, sbp=split(0))
    labels = from_numpy(LABELS[:4], placement=where, sbp=split(0))
    found = []
    for _ in range(steps):
        with Tape() as tape:
            loss, count = cross_entropy(model(x), labels)
            mean = loss / count.detach()
        for parameter, gradient in zip(trained, tape.gradients(mean, trained), strict=True):
            assign(parameter, value_of(parameter) - gradient * 0.1)
        found.append(loss.item())
    return [*found, *(value_of(p).square().sum().item() for _, p in model.parameters())]


def test_what_is_trained_line_by_line_equals_one_device() -> None:
    alone = on_ranks(1, lambda world: trained_by_line(placement(0)))[0]
    assert alone[3] < alone[0]
    for found in on_ranks(2, lambda world: trained_by_line(placement([0, 1]))):
        np.testing.assert_allclose(found, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.long
@pytest.mark.mpi
def test_what_is_trained_line_by_line_under_mpi_equals_one_device() -> None:
    alone = on_ranks(1, lambda world: trained_by_line(placement(0)))[0]
    told = run_ranks(2, "tests.mpi.by_line")
    np.testing.assert_allclose([float(text) for text in told.split()], alone, rtol=1e-9, atol=1e-12)


def test_gradients_are_those_of_finite_differences() -> None:
    weights = RNG.standard_normal((WIDTH, CLASSES))

    def code(world: World) -> None:
        where = placement([0, 1])
        x = from_numpy(X, placement=where, sbp=split(0))
        w = from_numpy(weights, placement=where, sbp=split(1))
        value = lambda w: ((x @ w).tanh() ** 3).mean()  # noqa: E731
        with Tape() as tape:
            loss = value(w)
        dx, dw = tape.gradients(loss, [x, w])
        assert (dx.sbp, dw.sbp) == (x.sbp, w.sbp)
        whole, step = w.numpy(), 1e-6
        for place in ((0, 0), (3, 2)):
            moved = whole.copy()
            moved[place] += step
            there = value(from_numpy(moved, placement=where, sbp=split(1)))
            assert dw.numpy()[place] == pytest.approx((there.item() - loss.item()) / step, rel=1e-4)

    on_ranks(2, code)


def test_gradients_cross_placements() -> None:
    def code(world: World) -> Any:
        here, there = placement([0, 1]), placement([2, 3])
        x = from_numpy(X, placement=here, sbp=split(0))
        w = from_numpy(np.ones((WIDTH, CLASSES)), placement=there, sbp=split(1))
        with Tape() as tape:
            loss = (x.to_global(placement=there, sbp=broadcast) @ w).square().sum()
        dx, dw = tape.gradients(loss, [x, w])
        assert (dx.placement, dw.placement) == (here, there)
        return dx.numpy(), dw.numpy()

    dx, dw = on_ranks(4, code)[3]
    y = X @ np.ones((WIDTH, CLASSES))
    np.testing.assert_allclose(dx, 2 * y @ np.ones((CLASSES, WIDTH)))
    np.testing.assert_allclose(dw, 2 * X.T @ y)


def test_what_has_no_gradient_says_so() -> None:
    x = from_numpy(X, placement=placement(0), sbp=broadcast)
    before = x.sum()
    with Tape() as tape:
        loss = x.sum()
    with pytest.raises(InputError, match=r"the loss was not computed on the tape .*with Tape"):
        tape.gradients(before, [x])
    with pytest.raises(InputError, match="the loss has no gradient by it"):
        tape.gradients(loss, [before])


def test_from_local_to_global() -> None:
    def code(world: World) -> Any:
        own = X[:4] if world.rank == 0 else X[4:]
        whole = from_local(own, placement=placement([0, 1]), sbp=split(0))
        terms = from_local(np.full((2,), world.rank + 1.0), placement=placement([0, 1]), sbp="P")
        with pytest.raises(InputError, match="pieces that are not cut like this layout"):
            from_local(X[: 2 + 2 * world.rank], placement=placement([0, 1]), sbp=split(0))
        return whole.numpy(), terms.numpy().tolist()

    for whole, terms in on_ranks(2, code):
        np.testing.assert_array_equal(whole, X)
        assert terms == [3.0, 3.0]
