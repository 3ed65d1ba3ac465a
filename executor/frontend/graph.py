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
    call = train(ids, labels)                            one step, behind the code that goes on (see `calls`)
    loss = call.result()                                 a global tensor

Every rank makes the same calls with the same inputs (see `executor.frontend.world`). What is compiled is a plan's
program: the graph is traced, laid out as pins and deduction (or a search) say, lowered, admitted, and driven by a
`Worker`.

    plan = train.search(cluster, feeds, find=best_plan)  instead of a placement: everything that a plan says
    train = Train(model, plan=plan)

Graphs that hold one module share its state: the registers of its parameters are the same memory, wherever they were
first made. So an evaluation sees what a training step wrote, without a copy.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.frontend.agreement import agree_on, digest_of
from executor.frontend.calls import DeferredCall
from executor.frontend.compiled import Compiled
from executor.frontend.global_tensor import GlobalTensor, Layouts, state_dict
from executor.frontend.global_tensor.modules import state_problems, write
from executor.frontend.graph_layout import Where, Wishes, layout_graph, placements_of
from executor.frontend.traced import TracedGraph, recorded, trace
from executor.frontend.world import World, current_world
from strategy.base.errors import GraphError, InputError, present, report
from strategy.cost.cost import CostModel
from strategy.graph.graph import Graph as OpGraph
from strategy.hardware.cluster import Cluster
from strategy.models import Model
from strategy.models.recorded import Feed, Recorded
from strategy.nn.module import Module
from strategy.nn.operators import Operators
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.sbp.tensor import DType, TensorSpec
from strategy.search.choose import ChooseSignatures, deduced
from strategy.space.deduce import Deduction
from strategy.space.request import Pins, Request

Specs = tuple[TensorSpec, ...]
FindPlan = Callable[[Request], Plan]
"""The search, as programs pass it in."""


class Graph(Module):
    """Base of compiled computations; subclasses hold modules as attributes and write `build`.

    Args:
        placement: where it runs: a placement or its ranks, or one per pipeline stage, disjoint and of one mesh. A graph
            that is only searched needs none.
        plan: what `search` found, or `read_plan` read; it says all that follows but `output_buffers`.
        training: how it trains what it minimizes; inputs have the rows of its global batch. None only computes.
        layouts: value name or pattern -> its layout, wherever it is written or read.
        stages: op name or pattern -> its stage, where there are several.
        choose: how signatures are chosen where pins leave a choice: `deduced(RULE)`, or `searched` for the best.
        dtype: of parameters; by default that of the training, or float32.
        seed: of parameters that have no value yet.
        output_buffers: how many calls may be under way on a rank; one more waits for the oldest.
    """

    def __init__(
        self,
        *,
        placement: Where | Sequence[Where] | None = None,
        plan: Plan | None = None,
        training: Training | None = None,
        layouts: Mapping[str, Layouts] | None = None,
        stages: Mapping[str, int] | None = None,
        choose: ChooseSignatures = deduced(Deduction.MATCH_ALL),  # noqa: B008 (a function without state)
        dtype: DType | None = None,
        seed: int = 0,
        output_buffers: int = 2,
    ) -> None:
        if output_buffers < 1:
            raise InputError(
                "a call needs a place for its output", got=f"output_buffers={output_buffers}", expected=">= 1"
            )
        if plan is not None and (placement is not None or training is not None or layouts or stages):
            hint = "pin them when you search: search(..., pins=Pins(...))"
            raise InputError("a plan says where and how a graph is trained", where=type(self).__name__, hint=hint)
        self._where = placement
        self._plan = plan
        self._training = training if plan is None else plan.training
        self._layouts = dict(layouts or {})
        self._stages = dict(stages or {})
        self._choose = choose
        self._dtype = dtype or (DType.FLOAT32 if training is None else training.dtype)
        self._seed = seed if plan is None else plan.training.seed
        self._compiled: dict[Specs, Compiled] = {}
        self._own: dict[str, GlobalTensor] = {}
        self._minimized: tuple[str, str] | None = None
        self._given: dict[str, NDArray[Any]] = {}
        self._steps = 0
        self._output_buffers = output_buffers
        self._under_way: deque[DeferredCall] = deque()

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
        if self._minimized is not None:
            raise InputError(
                "minimize is called twice",
                where=type(self).__name__,
                got=[self._minimized[0], loss.name],
                expected="one summed loss",
                hint="add shares of further losses to the first (strategy.nn.losses.joint_loss)",
            )
        self._minimized = loss.name, count.name

    def __call__(self, *inputs: NDArray[Any] | GlobalTensor) -> DeferredCall:
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
        compiled.agree_on_inputs(f"call {self._steps + 1} of {type(self).__name__}", wholes)
        self._steps += 1
        call = world.calls.begin(f"call {self._steps} of {type(self).__name__}", lambda: compiled.run(wholes, step))
        self._under_way.append(call)
        return call

    def state_dict(self) -> dict[str, GlobalTensor]:
        """Parameters and, once they are there, the optimiser's tensors, by name; they share the graph's memory."""
        return {**state_dict(self), **self._own}

    def load_state_dict(self, state: Mapping[str, GlobalTensor | NDArray[Any]], *, step: int = 0) -> None:
        """Go on from a state that `state_dict` gave, after so many steps; before the first call, or between calls.

        Raises:
            InputError: a parameter is missing, a name unknown, or a shape another; all of it at once.
        """
        current_world().calls.settle()
        held = self.state_dict()
        named = {name: parameter.shape for name, parameter in self.parameters()}
        shapes = {**named, **{name: tensor.shape for name, tensor in held.items()}}
        more = {} if self._compiled else {name: tuple(given.shape) for name, given in state.items()}
        report(state_problems({**more, **shapes}, state), where="state")
        for name, given in state.items():
            if name in held:
                write(held[name], given)
            else:
                self._given[name] = given.numpy() if isinstance(given, GlobalTensor) else np.array(given)
        self._steps = step

    def recorded(self, feeds: Mapping[str, Feed]) -> Model:
        """This graph as a model, which searches, plans and commands take like a preset.

        Args:
            feeds: what fills each argument of `build`, and the shape of a sample of it.

        Raises:
            GraphError: with every problem of the graph, or it is not the same for any number of samples.
            InputError: it minimizes nothing, or lays out tensors in its code.
        """
        return recorded(self, self.build, self._fed(feeds), self._take_minimized)[0]

    def search(
        self,
        cluster: Cluster,
        feeds: Mapping[str, Feed],
        *,
        find: FindPlan,
        global_batch: int | None = None,
        pins: Pins = Pins(),  # noqa: B008 (a value)
    ) -> Plan:
        """The best plan to train this graph by, over all degrees, schedules, recomputing, ZeRO and layouts.

        Args:
            cluster: what it is trained on.
            feeds: what fills each argument of `build`, and the shape of a sample of it.
            find: the search: gives the best plan for a request (`experiments.planning.best_plan`).
            global_batch: samples per step; by default that of `training`.
            pins: what is fixed of the plan.

        Raises:
            GraphError, InputError: see `recorded`.
            InfeasibleError: nothing fits; names a limit that would do.
        """
        if self._training is None:
            raise InputError("nothing says how to train", where=type(self).__name__, hint="give it training=Training()")
        training = replace(
            self._training, num_micro_batches=1, global_batch=global_batch or self._training.global_batch
        )
        request = Request(
            model_name=type(self).__name__,
            model=self.recorded(feeds),
            training=training,
            cost=CostModel(cluster, {}),
            memory_limit_bytes=cluster.largest_memory_bytes,
            pins=pins,
        )
        return find(request)

    def _fed(self, feeds: Mapping[str, Feed]) -> dict[str, Feed]:
        """In the order of the arguments of `build`."""
        names = self._input_names(len(feeds))
        if set(names) != set(feeds):
            raise InputError("not the arguments of build", where="feeds", got=list(feeds), expected=", ".join(names))
        return {name: feeds[name] for name in names}

    def _take_minimized(self) -> tuple[str, str] | None:
        found, self._minimized = self._minimized, None
        return found

    def _compile(self, world: World, specs: Specs) -> Compiled:
        self._minimized = None
        named = dict(zip(self._input_names(len(specs)), specs, strict=True))
        parameters = {name: parameter for name, parameter in reversed(list(self.parameters()))}
        held = {name: world.state[parameter] for name, parameter in parameters.items() if parameter in world.state}
        held.update(self._own)
        make = self._by_pins if self._plan is None else self._by_plan
        compiled = make(world, named, held)
        compiled.start(held)
        for name, tensor in compiled.state(self._seed, held, self._given).items():
            if name in parameters:
                world.state[parameters[name]] = tensor
            else:
                self._own[name] = tensor
        return compiled

    def _by_pins(self, world: World, named: Mapping[str, TensorSpec], held: Mapping[str, GlobalTensor]) -> Compiled:
        """The graph as it is traced, laid out by pins and chosen signatures."""
        if self._where is None:
            hint = "give it placement=, or plan=, which search() finds"
            raise InputError("nothing says where the graph runs", where=type(self).__name__, hint=hint)
        placements, problems = placements_of(world, self._where)
        wishes = Wishes(placements, self._layouts, self._stages)
        tracer = Tracer()
        tracer.adopt(self, self._dtype)
        try:
            traced = trace(tracer, self, self.build, named, self._training, self._take_minimized)
        except GraphError as error:
            partial = OpGraph(dict(tracer.graph.values), tuple(tracer.graph.ops))
            problems += wishes.problems(partial, tracer.pins, tracer.places, incomplete=True)
            raise GraphError([*error.problems, *map(str, problems)]) from error
        report([*problems, *wishes.problems(traced.graph, traced.pins, traced.places)], where="graph")
        agree_on(world, f"compile {type(self).__name__}", self._facts())
        agree_on(world, f"compile {type(self).__name__}", {"computation": digest_of(traced.graph)})
        layout = layout_graph(world, traced, wishes, held, self._choose)
        return Compiled(world, traced, layout, world.converter(*placements).cost)

    def _by_plan(self, world: World, named: Mapping[str, TensorSpec], held: Mapping[str, GlobalTensor]) -> Compiled:
        """The graph of the plan, as that lays it out."""
        plan = present(self._plan, "a plan")
        agree_on(world, f"compile {type(self).__name__}", {**self._facts(), "plan": plan.plan_hash})
        model = plan.model
        for placement in plan.layout.stages.placements:
            world.check(placement)
        expected = model.inputs(plan.training.global_batch)
        if dict(named) != expected:
            told = {name: str(spec) for name, spec in expected.items()}
            raise InputError(
                "not the inputs of the plan", got={n: str(s) for n, s in named.items()}, expected=str(told)
            )
        if not isinstance(model, Recorded):
            hint = "read a plan that search() found for this graph"
            raise InputError("the plan is of a preset", where=type(self).__name__, got=plan.model_name, hint=hint)
        found, outputs, step_values = recorded(self, self.build, model.recording.feeds, self._take_minimized)
        if found != model:
            got, hint = f"{found}, as the code is now", "search anew"
            raise InputError(
                "the plan is of another graph", where=type(self).__name__, got=got, expected=str(model), hint=hint
            )
        traced = TracedGraph(plan.graph, tuple(named), outputs, step_values, plan.pipeline, {}, {})
        compiled = Compiled(world, traced, plan.layout, plan.cost)
        compiled.check(held)
        return compiled

    def _facts(self) -> dict[str, str]:
        """What the program follows from, where this rank got it from its own code."""
        training = {} if self._training is None else asdict(self._training)
        return {
            "placement": str(self._where),
            "dtype": str(self._dtype),
            "seed": str(self._seed),
            "output buffers": str(self._output_buffers),
            **{f"training's {name}": repr(value) for name, value in training.items()},
            "layouts": ", ".join(f"{name} {layout}" for name, layout in sorted(self._layouts.items())),
            "stages": ", ".join(f"{name} {stage}" for name, stage in sorted(self._stages.items())),
        }

    def _input_names(self, count: int) -> list[str]:
        """As `build` calls its arguments."""
        written = inspect.signature(self.build).parameters.values()
        names = [p.name for p in written if p.kind is not inspect.Parameter.VAR_POSITIONAL][:count]
        return names + [f"input_{number}" for number in range(len(names), count)]


def _spec(number: int, whole: NDArray[Any]) -> TensorSpec:
    known = [str(dtype) for dtype in DType if not dtype.is_code]
    if str(whole.dtype) not in known:
        expected = ", ".join(known)
        raise InputError("no dtype of tensors", where=f"input {number}", got=str(whole.dtype), expected=expected)
    return TensorSpec(whole.shape, DType(str(whole.dtype)))
