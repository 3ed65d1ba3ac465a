"""Graph: a computation written as a class, compiled on its first call and run on every later one.

    class Train(Graph):
        def __init__(self, model: Module, **options: Any) -> None:
            super().__init__(**options)
            self.model = model

        def build(self, ids: Tensor, labels: Tensor) -> Tensor:
            loss, count = self.model(ids, labels)
            self.minimize(loss, count)
            return loss

    train = Train(model, placement=placement([0, 1]), training=Training(global_batch=8), layouts={"ids": split(0)})
    call = train(ids, labels)                            one step, behind the code that goes on (see `executor.calls`)
    loss = call.result()                                 a global tensor

Every rank makes the same calls with the same inputs (see `executor.world`). What is compiled is a plan's program: the
graph is traced, laid out as pins and deduction (or a search) say, lowered, admitted, and driven by a `Worker`.

Graphs that hold one module share its state: the registers of its parameters are the same memory, wherever they were
first made. So an evaluation sees what a training step wrote, without a copy.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.calls import Call
from executor.compiled import Compiled, Traced, mapped
from executor.global_tensor import GlobalTensor, Layouts, full_layout, placement
from executor.world import World, current_world
from strategy.builder import GraphBuilder
from strategy.convert import lay_out
from strategy.errors import GraphError, InfeasibleError, InputError, report
from strategy.graph import Graph as OpGraph
from strategy.graph import Op, Phase, Role
from strategy.layout import Home, Layout, Stages, assign_stages
from strategy.nn.module import Module
from strategy.nn.operators import Operators
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.training import Training, add_training
from strategy.placement import Placement
from strategy.sbp import NdSbp
from strategy.search.deduce import Deduction, deduce
from strategy.search.layout_problem import Keep, SearchSpace, layout_problem
from strategy.search.pins import pin_problems, pinned
from strategy.signature import Signature
from strategy.solve import solve
from strategy.tensor import DType, Rate, Shape, TensorSpec

Specs = tuple[TensorSpec, ...]
Where = Placement | Sequence[int]
"""A placement, or its ranks in a row."""


class Graph(Module):
    """Base of compiled computations; subclasses hold modules as attributes and write `build`.

    Args:
        placement: where it runs: a placement or its ranks, or one per pipeline stage, disjoint and of one mesh.
        training: how it trains what it minimizes; the global batch is that of the inputs. None only computes.
        layouts: value name or pattern -> its layout, wherever it is written or read.
        stages: op name or pattern -> its stage, where there are several.
        deduction: by which rule what is not pinned is deduced; None searches for the best.
        dtype: of parameters; by default that of the training, or float32.
        seed: of parameters that have no value yet.
        output_buffers: how many calls may be under way on a rank; one more waits for the oldest.
    """

    def __init__(
        self,
        *,
        placement: Where | Sequence[Where],
        training: Training | None = None,
        layouts: Mapping[str, Layouts] | None = None,
        stages: Mapping[str, int] | None = None,
        deduction: Deduction | None = Deduction.MATCH_ALL,
        dtype: DType | None = None,
        seed: int = 0,
        output_buffers: int = 2,
    ) -> None:
        if output_buffers < 1:
            raise InputError(
                "a call needs a place for its output", got=f"output_buffers={output_buffers}", expected=">= 1"
            )
        self._where = placement
        self._training = training
        self._layouts = dict(layouts or {})
        self._stages = dict(stages or {})
        self._deduction = deduction
        self._dtype = dtype or (DType.FLOAT32 if training is None else training.dtype)
        self._seed = seed
        self._compiled: dict[Specs, Compiled] = {}
        self._own: dict[str, GlobalTensor] = {}
        self._minimized: tuple[str, str] | None = None
        self._steps = 0
        self._output_buffers = output_buffers
        self._under_way: deque[Call] = deque()

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, Operators):
            raise InputError(
                "a tensor cannot be an attribute of a graph",
                where=f"{type(self).__name__}.{name}",
                got=f"{type(value).__name__}",
                expected="a Module, or a plain value",
                hint="pass it to build, or hold it in a Module as a Parameter",
            )
        super().__setattr__(name, value)

    def build(self, *inputs: Any) -> Any:
        """The computation, from traced tensors to a tensor, or a tuple or dict of tensors; subclasses write it."""
        raise NotImplementedError(f"{type(self).__name__}.build")

    def minimize(self, loss: Tensor, count: Tensor) -> None:
        """In `build`: train every parameter that `loss` depends on. Both are sums; `loss` over `count` is the mean."""
        self._minimized = loss.name, count.name

    def __call__(self, *inputs: NDArray[Any] | GlobalTensor) -> Call:
        """Begin to run once, and return; the first call with inputs of these shapes and dtypes compiles.

        Args:
            inputs: the whole of each, alike on every rank, or global tensors. They are copied.

        Returns:
            The call, whose result are global tensors in the structure that `build` returns.

        Raises:
            GraphError: with every problem of the graph.
            InputError: an input or a pin is wrong, or state lies where this graph does not run.
            RunError: the ranks do not call the same graph with the same inputs, or a call of theirs failed before.
        """
        if "_compiled" not in vars(self):
            raise InputError("the graph is not set up", where=type(self).__name__, hint="call super().__init__(...)")
        world = current_world()
        wholes = [given.numpy() if isinstance(given, GlobalTensor) else np.array(given) for given in inputs]
        specs = tuple(_spec(number, whole) for number, whole in enumerate(wholes))
        told = ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in specs)
        world.agree(f"{type(self).__name__}({told})")
        if specs not in self._compiled:
            world.calls.settle()
            self._compiled[specs] = self._compile(world, specs)
        if len(self._under_way) == self._output_buffers:
            self._under_way.popleft().wait()
        step, compiled = self._steps, self._compiled[specs]
        self._steps += 1
        call = world.calls.begin(f"call {self._steps} of {type(self).__name__}", lambda: compiled.run(wholes, step))
        self._under_way.append(call)
        return call

    def state_dict(self) -> dict[str, GlobalTensor]:
        """Parameters and, once they are there, the optimiser's tensors, by name; they share the graph's memory."""
        state = current_world().state
        named = {name: state[parameter] for name, parameter in self.parameters() if parameter in state}
        return {**named, **self._own}

    def _compile(self, world: World, specs: Specs) -> Compiled:
        tracer = Tracer()
        placements, problems = _placements(world, self._where)
        try:
            traced = self._trace(tracer, specs)
        except GraphError as error:
            partial = OpGraph(dict(tracer.graph.values), tuple(tracer.graph.ops))
            problems += self._pin_problems(partial, placements, tracer.pins, incomplete=True)
            raise GraphError([*error.problems, *map(str, problems)]) from error
        report([*problems, *self._pin_problems(traced.graph, placements, traced.pins)], where="graph")
        parameters = {name: parameter for name, parameter in reversed(list(self.parameters()))}
        held = {name: world.state[parameter] for name, parameter in parameters.items() if parameter in world.state}
        held.update(self._own)
        compiled = Compiled(world, traced, self._lay_out(world, traced, placements, held))
        compiled.start(held)
        for name, tensor in compiled.state(self._seed, held).items():
            if name in parameters:
                world.state[parameters[name]] = tensor
            else:
                self._own[name] = tensor
        return compiled

    def _all_layouts(self, mesh: Shape, pins: Mapping[str, Layouts]) -> dict[str, NdSbp]:
        """The pins of the code, then those given to the graph, which count where both say something."""
        return {pattern: full_layout(layout, mesh) for pattern, layout in {**pins, **self._layouts}.items()}

    def _pin_problems(
        self,
        graph: OpGraph,
        placements: Sequence[Placement],
        pins: Mapping[str, Layouts],
        *,
        incomplete: bool = False,
    ) -> list[InputError]:
        mesh = placements[0].mesh if placements else (1,)
        layouts = self._all_layouts(mesh, pins)
        return pin_problems(graph, layouts=layouts, stages=self._stages, axes=len(mesh), incomplete=incomplete)

    def _trace(self, tracer: Tracer, specs: Specs) -> Traced:
        tracer.adopt(self, self._dtype)
        count = 1 if self._training is None else self._training.num_micro_batches
        written = inspect.signature(self.build).parameters.values()
        names = [p.name for p in written if p.kind is not inspect.Parameter.VAR_POSITIONAL][: len(specs)]
        names += [f"input_{number}" for number in range(len(names), len(specs))]
        self._minimized = None
        with _tracing_as(self, training=self._training is not None), tracer.enter(self):
            inputs = [tracer.input(n, _micro(s, count, n)) for n, s in zip(names, specs, strict=True)]
            outputs = self.build(*inputs)
        tracer.check()
        builder = tracer.graph
        wanted = {t.name: _step_value(builder, t.name, count) for t in _tensors(outputs, type(self).__name__)}
        if (self._training is None) != (self._minimized is None):
            what = "says how to train, and minimizes nothing" if self._training else "minimizes, and says not how"
            hint = "call self.minimize(loss, count) in build" if self._training else "give it training=Training(...)"
            raise InputError(f"the graph {what}", where=type(self).__name__, hint=hint)
        if self._training is not None and self._minimized is not None:
            rows = specs[0].shape[0] if specs and specs[0].shape else count
            add_training(builder, *self._minimized, replace(self._training, global_batch=rows))
        loss = self._minimized[0] if self._minimized else ""
        return Traced(builder.build(loss=loss), tuple(names), outputs, wanted, count, dict(tracer.pins))

    def _lay_out(
        self, world: World, traced: Traced, placements: tuple[Placement, ...], held: Mapping[str, GlobalTensor]
    ) -> Layout:
        graph, mesh = traced.graph, placements[0].mesh
        stages = _at_home(graph, assign_stages(graph, placements, pins=self._stages), held)
        keep = _in_place(pinned(graph, self._all_layouts(mesh, traced.pins), mesh), held)
        converter = world.converter(*placements)
        if self._deduction is not None:
            signatures: Mapping[str, Signature] = deduce(graph, stages, converter, keep, rule=self._deduction)
        else:
            weights = (1,) * len(placements)
            space = SearchSpace(graph, stages, traced.pipeline, converter.cost, converter, weights, keep)
            problem = layout_problem(space)
            solution = solve(problem.problem)
            if solution.choice is None:
                raise InfeasibleError("no layout satisfies the pins", hint="relax a pin")
            signatures = problem.signatures(solution.choice)
        return lay_out(graph, stages, signatures, converter)


@contextmanager
def _tracing_as(root: Module, *, training: bool) -> Iterator[None]:
    """Modules that differ between training and evaluation trace for what the graph is for, however they are set."""
    switched = [m for m, _, _ in root.walk() if getattr(m, "training", training) is not training]
    for module in switched:
        vars(module)["training"] = training
    try:
        yield
    finally:
        for module in switched:
            vars(module)["training"] = not training


def _spec(number: int, whole: NDArray[Any]) -> TensorSpec:
    known = [str(dtype) for dtype in DType]
    if str(whole.dtype) not in known:
        expected = ", ".join(known)
        raise InputError("no dtype of tensors", where=f"input {number}", got=str(whole.dtype), expected=expected)
    return TensorSpec(whole.shape, DType(str(whole.dtype)))


def _placements(world: World, given: Where | Sequence[Where]) -> tuple[tuple[Placement, ...], list[InputError]]:
    """The stages' placements, and what is wrong with them."""
    stages: list[Any] = [given] if isinstance(given, Placement) or all(isinstance(r, int) for r in given) else [*given]
    found: list[Placement] = []
    problems: list[InputError] = []
    for stage in stages:
        try:
            found.append(stage if isinstance(stage, Placement) else placement(stage))
            world.check(found[-1])
        except InputError as error:
            problems.append(error)
    ranks = [rank for one in found for rank in one.devices]
    if len(set(ranks)) != len(ranks):
        problems.append(InputError("a rank is in two stages", where="placement", got=ranks, expected="each once"))
    if len({one.mesh for one in found}) > 1:
        meshes = [one.mesh for one in found]
        problems.append(InputError("stages differ in their mesh", where="placement", got=meshes, expected="one mesh"))
    return tuple(found), problems


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
    return builder.add(f"{name}:told", "accumulate", (name,), phase=Phase.FORWARD)[0]


def _tensors(outputs: Any, where: str) -> list[Tensor]:
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    try:
        mapped(outputs, note)
    except TypeError as error:
        expected = "a tensor, or a tuple, list or dict of tensors"
        raise InputError("build returns something else", where=where, got=str(error), expected=expected) from None
    return found


def _at_home(graph: OpGraph, stages: Stages, held: Mapping[str, GlobalTensor]) -> Stages:
    """Stages with what is held at its home: its update runs there; what no op updates is read from there.

    Raises:
        InputError: a tensor is held elsewhere, or is of another dtype.
    """
    stage_of, homes = dict(stages.stage_of), dict(stages.homes)
    for value in graph.with_role(Role.VARIABLE):
        if value.name not in held:
            continue
        tensor = held[value.name]
        if tensor.spec != value.spec:
            raise InputError("state of another type", where=value.name, got=str(tensor), expected=str(value.spec))
        if tensor.placement not in stages.placements:
            expected = " or ".join(f"{list(p.devices)} as {p.mesh}" for p in stages.placements)
            raise InputError(
                "state lies where the graph does not run", where=value.name, got=str(tensor), expected=expected
            )
        stage = stages.placements.index(tensor.placement)
        updater = graph.updater.get(value.name)
        if updater is not None:
            stage_of[updater.name] = stage
        else:
            homes[value.name] = Home(stage, tensor.sbp)
    return replace(stages, stage_of=stage_of, homes=homes)


def _in_place(keep: Keep, held: Mapping[str, GlobalTensor]) -> Keep:
    """Updates leave what is held in the layout that it has."""

    def keep_in_place(op: Op, signature: Signature) -> bool:
        here = (held[n].sbp == nd for n, nd in zip(op.updates, signature.updates, strict=True) if n in held)
        return keep(op, signature) and all(here)

    return keep_in_place
