"""Traced graphs: what `build` of a graph computes, as ops, and the value per step of everything that it returns.

A graph that a plan lays out is recorded first (`strategy.models.recording`), and is then the graph of its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from executor.frontend.global_tensor import Layouts
from strategy.base.errors import GraphError, InputError
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Attrs, Graph, Phase, Role
from strategy.layout.arrangement import Pipeline
from strategy.layout.schedule import Schedule
from strategy.models.base import Model
from strategy.models.per_sample import SAMPLES
from strategy.models.recorded import Feed
from strategy.models.recording import TracedLoss, record
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.training import Training, add_training
from strategy.sbp.placement import Placement
from strategy.sbp.tensor import DType, Rate, TensorSpec


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """A graph, its inputs, what `build` returned, the value per step of every output, the code's pins and places."""

    graph: Graph
    inputs: tuple[str, ...]
    outputs: Any
    step_values: Mapping[str, str]
    pipeline: Pipeline
    """How micro-batches pass through the stages."""
    pins: Mapping[str, Layouts]
    places: Mapping[str, Placement]

    @property
    def num_micro_batches(self) -> int:
        """Per step."""
        return self.pipeline.num_micro_batches


Loss = tuple[str, str]
"""The names of a summed loss and of what it is divided by."""


def trace(
    tracer: Tracer,
    root: Module,
    build: Callable[..., Any],
    inputs: Mapping[str, TensorSpec],
    training: Training | None,
    minimized: Callable[[], Loss | None],
) -> TracedGraph:
    """Trace a computation into `tracer`, and add what trains it.

    Args:
        tracer: has adopted `root`; holds the graph so far if this raises.
        root: the modules that `build` may call.
        build: the computation.
        inputs: the whole of each input.
        training: how what is minimized is trained.
        minimized: gives, after `build`, what that minimizes, if anything, once.

    Raises:
        GraphError: with every problem of the graph.
        InputError: `build` returns what cannot be given, or minimizes without a training or the other way round.
    """
    count = 1 if training is None else training.num_micro_batches
    where = type(root).__name__
    micro = {name: _micro(spec, count, name) for name, spec in inputs.items()}
    outputs = _forward(tracer, root, build, micro, training=training is not None)
    builder, loss = tracer.graph, minimized()
    if count > 1:
        whole = Tracer()
        whole.adopt(root, tracer.dtype)
        _forward(whole, root, build, inputs, training=training is not None)
        minimized()
        scalars = [t.name for t in _tensors(outputs, where)] + ([loss[0]] if loss else [])
        _check_sums(builder, whole.graph, scalars)
    wanted = {t.name: _step_value(builder, t.name, count) for t in list(_tensors(outputs, where))}
    if (training is None) != (loss is None):
        what = "says how to train, and minimizes nothing" if training else "minimizes, and says not how"
        hint = "call self.minimize(loss, count) in build" if training else "give it training=Training(...)"
        raise InputError(f"the graph {what}", where=where, hint=hint)
    if training is not None and loss is not None:
        _check_batch(inputs, training.global_batch)
        add_training(builder, *loss, training)
    graph = builder.build(loss=loss[0] if loss else "")
    pipeline = Pipeline(count, Schedule.ONE_F_ONE_B, False)
    return TracedGraph(graph, tuple(inputs), outputs, wanted, pipeline, dict(tracer.pins), dict(tracer.places))


def recorded(
    root: Module, build: Callable[..., Any], feeds: Mapping[str, Feed], minimized: Callable[[], Loss | None]
) -> tuple[Model, Any, dict[str, str]]:
    """A computation as a model that a search takes, what `build` returned, and the value per step of each output.

    Args:
        root: the modules that `build` may call.
        build: the computation.
        feeds: its inputs, in their order.
        minimized: gives, after `build`, what that minimizes, once.

    Raises:
        GraphError: with every problem of the graph.
        InputError: it minimizes nothing, gives what cannot be given, or says itself where and how tensors lie.
    """
    where, found = type(root).__name__, list[tuple[Any, dict[str, str], TracedLoss]]()

    def traced(samples: int) -> TracedLoss:
        tracer = Tracer()
        tracer.adopt(root, DType.FLOAT32)
        inputs = {name: feed.spec(samples) for name, feed in feeds.items()}
        outputs = _forward(tracer, root, build, inputs, training=True)
        loss = minimized()
        if loss is None:
            hint = "call self.minimize(loss, count) in build"
            raise InputError("a plan is for training, and the graph minimizes nothing", where=where, hint=hint)
        if tracer.pins or tracer.places:
            said, hint = [*tracer.pins, *tracer.places], "leave out pin and to_global, and give the search pins="
            raise InputError("the code lays out what a search would", where=where, got=said, hint=hint)
        names = [tensor.name for tensor in _tensors(outputs, where)]
        step_values = {name: _step_value(tracer.graph, name, len(SAMPLES)) for name in names}
        found.append((outputs, step_values, TracedLoss(tracer.graph, *loss)))
        return found[-1][2]

    model = record(traced, feeds)
    (_, _, few), *_, (outputs, step_values, many) = found
    _check_sums(few.graph, many.graph, [*step_values, few.loss])
    return model, outputs, step_values


def _forward(
    tracer: Tracer, root: Module, build: Callable[..., Any], inputs: Mapping[str, TensorSpec], *, training: bool
) -> Any:
    """What `build` gives for inputs of these types."""
    with _tracing_as(root, training=training), tracer.enter(root):
        outputs = build(*(tracer.input(name, spec) for name, spec in inputs.items()))
    tracer.check()
    return outputs


def _check_batch(inputs: Mapping[str, TensorSpec], global_batch: int) -> None:
    """Refuse inputs that are not the global batch that the training speaks of.

    Raises:
        InputError: names the first such input.
    """
    for name, spec in inputs.items():
        if spec.shape and spec.shape[0] != global_batch:
            got, expected = f"{list(spec.shape)}", f"{global_batch} rows, the global_batch of the training"
            hint = "give as many rows, or Training(global_batch=...) of the rows that there are"
            raise InputError("not the global batch", where=f"input {name}", got=got, expected=expected, hint=hint)


def _check_sums(micro: GraphBuilder, whole: GraphBuilder, names: Iterable[str]) -> None:
    """Refuse scalars that are means over a micro-batch: a step adds up what its micro-batches give.

    Raises:
        GraphError: names the ops that divide by the samples of a micro-batch.
    """
    producer, there = ({name: op for op in graph.ops for name in op.outputs} for graph in (micro, whole))
    problems: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        op = producer.get(name)
        if op is None or micro.spec(name).shape or name not in there:
            continue
        waiting += op.inputs
        if _divides(op.attrs, there[name].attrs):
            problems[
                f"op {op.name}: a mean over the samples of a micro-batch (a step adds up what they give); "
                "give the sum, and divide result() by the whole; what is minimized is divided by its count"
            ] = None
    if problems:
        raise GraphError(list(problems))


def _divides(micro: Attrs, whole: Attrs) -> bool:
    """Whether an op scales by less the more samples there are."""
    shrinks = [(micro.get("factor"), whole.get("factor")), (whole.get("count"), micro.get("count"))]
    return any(isinstance(a, int | float) and isinstance(b, int | float) and abs(a) > abs(b) for a, b in shrinks)


def mapped(outputs: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same structure with every tensor changed."""
    if outputs is None:
        return None
    if isinstance(outputs, Tensor):
        return change(outputs)
    if isinstance(outputs, Mapping):
        return {key: mapped(member, change) for key, member in outputs.items()}
    if isinstance(outputs, tuple | list):
        return tuple(mapped(member, change) for member in outputs)
    raise TypeError(type(outputs).__name__)


@contextmanager
def _tracing_as(root: Module, *, training: bool) -> Iterator[None]:
    """Modules that differ between training and evaluation trace for what the graph is for, however they are set."""
    switched = [m for m, _ in root.walk() if getattr(m, "training", training) is not training]
    for module in switched:
        vars(module)["training"] = training
    try:
        yield
    finally:
        for module in switched:
            vars(module)["training"] = not training


def _micro(spec: TensorSpec, count: int, name: str) -> TensorSpec:
    """What one of `count` micro-batches has of an input."""
    if count == 1:
        return spec
    if not spec.shape or spec.shape[0] % count:
        expected = f"a first dim that {count} divides"
        raise GraphError([f"input {name}: does not divide into micro-batches (got {spec.shape}, expected {expected})"])
    return TensorSpec((spec.shape[0] // count, *spec.shape[1:]), spec.dtype)


def _step_value(builder: GraphBuilder, name: str, count: int) -> str:
    """The value of an output that appears once per step: of a scalar, the sum over the micro-batches."""
    value = builder.values[name]
    if value.role is not Role.COMPUTED:
        raise InputError("an output that nothing computes", got=name, hint="state_dict() holds parameters")
    if count == 1 or value.rate is Rate.STEP:
        return name
    if value.spec.shape:
        expected = "a scalar, of which the sum over the micro-batches is given"
        hint = "a graph without training=, which has no micro-batches, gives all rows of the same module"
        got = f"{name} {value.spec.shape}"
        raise InputError("an output has a piece per micro-batch", got=got, expected=expected, hint=hint)
    return builder.add(builder.derived(name, "told"), "accumulate", (name,), phase=Phase.FORWARD)[0]


def _tensors(outputs: Any, where: str) -> Iterator[Tensor]:
    """The tensors of a structure, in order."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, Mapping | tuple | list):
        for member in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from _tensors(member, where)
    elif outputs is not None:
        expected = "a tensor, or a tuple, list or dict of tensors"
        got = type(outputs).__name__
        raise InputError("build returns something else", where=where, got=got, expected=expected)
