"""Traced graphs: what `build` of a graph computes, as ops, and the value per step of everything that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from executor.frontend.global_tensor import Layouts
from strategy.base.errors import GraphError, InputError
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Phase, Role
from strategy.layout.arrangement import Pipeline
from strategy.layout.schedule import Schedule
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.training import Training, add_training
from strategy.sbp.placement import Placement
from strategy.sbp.tensor import Rate, TensorSpec


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """A graph, its inputs, what `build` returned, the value per step of every output, the code's pins and places."""

    graph: Graph
    inputs: tuple[str, ...]
    outputs: Any
    step_values: Mapping[str, str]
    num_micro_batches: int
    pins: Mapping[str, Layouts]
    places: Mapping[str, Placement]

    @property
    def pipeline(self) -> Pipeline:
        """How micro-batches pass through the stages."""
        return Pipeline(self.num_micro_batches, Schedule.ONE_F_ONE_B, False)


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
        minimized: gives, after `build`, what it minimizes, if anything.

    Raises:
        GraphError: with every problem of the graph.
        InputError: `build` returns what cannot be given, or minimizes without a training or the other way round.
    """
    count = 1 if training is None else training.num_micro_batches
    where = type(root).__name__
    with _tracing_as(root, training=training is not None), tracer.enter(root):
        tensors = [tracer.input(name, _micro(spec, count, name)) for name, spec in inputs.items()]
        outputs = build(*tensors)
    tracer.check()
    builder, loss = tracer.graph, minimized()
    wanted = {t.name: _step_value(builder, t.name, count) for t in list(_tensors(outputs, where))}
    if (training is None) != (loss is None):
        what = "says how to train, and minimizes nothing" if training else "minimizes, and says not how"
        hint = "call self.minimize(loss, count) in build" if training else "give it training=Training(...)"
        raise InputError(f"the graph {what}", where=where, hint=hint)
    if training is not None and loss is not None:
        first = next(iter(inputs.values()), TensorSpec(()))
        rows = first.shape[0] if first.shape else count
        add_training(builder, *loss, replace(training, global_batch=rows))
    graph = builder.build(loss=loss[0] if loss else "")
    return TracedGraph(graph, tuple(inputs), outputs, wanted, count, dict(tracer.pins), dict(tracer.places))


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
        raise InputError("an output has a piece per micro-batch", got=f"{name} {value.spec.shape}", expected=expected)
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
