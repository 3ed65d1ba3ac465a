"""Layer pricing: what the layers of a model take and hold under one strategy, for every method that asks.

A strategy's layouts are found axis by axis, on two ranks each, by Alpa's integer program (`strategy.ilp.baselines`):

    data axis      activations by sample; parameters, gradients and updates as the stage of ZeRO says
    tensor axis    Megatron's rule, activations free, so that they are split by position between the pairs of products
                   (sequence parallelism); or all free, for Alpa

and put together for any degrees. What a data degree adds to a layer does not depend on the micro-batch, so that

    parts(dp, tp, b) = parts(dp, tp, 1) + parts(2, tp, b) - parts(2, tp, 1)

and hundreds of configurations are priced from some dozens of layouts. All of these are exact but for the bytes that are
held in passing and, by some percent, what ZeRO 3 exchanges for a micro-batch. A mesh on which layouts cannot be put
together (eight experts on sixteen ranks) is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

from strategy.base.budget import Budget
from strategy.base.errors import SbplanError
from strategy.graph.graph import Graph, Op, Phase, Role
from strategy.graph.signature import Signature
from strategy.ilp.baselines import elimination, integer_program
from strategy.layout.arrangement import arrange
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import Home, assign_stages, home_of
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import Overlap
from strategy.models import Model
from strategy.passes.planned import planned_graph
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, NdSbp, Sbp, Split
from strategy.sbp.tensor import Rate, TensorSpec
from strategy.search.template.parts import LayerPart, ModelParts, parts_of
from strategy.search.template.stages import messages_ns
from strategy.space.axis_orders import placements_of
from strategy.space.candidate_space import space_of
from strategy.space.candidates import divisors
from strategy.space.layout_problem import layout_problem
from strategy.space.request import Request
from strategy.space.rules import AlongAxes, AxisRule, sample_flow, shared_samples_axis, tensor_parallel
from strategy.space.short_model import MIDDLE
from strategy.space.space import SearchSpace

SOLVING_S = 5.0
"""For the layouts along one axis."""
MANY = 8
"""Micro-batches that layouts are found for; any number above one is alike but for what is done once per step."""
LARGEST_MICRO_BATCH = 8


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a layer is laid out on the ranks of a stage.

    Attributes:
        dp, tp: degrees.
        recompute: whether all of it is computed again.
        zero_stage: what data-parallel ranks share out.
        searched: whether layouts along the tensor axis are free, instead of Megatron's.
    """

    dp: int
    tp: int
    recompute: Recompute = Recompute.NONE
    zero_stage: int = 0
    searched: bool = False

    @property
    def ranks(self) -> int:
        """Of a stage."""
        return self.dp * self.tp

    def __str__(self) -> str:
        again = "" if self.recompute is Recompute.NONE else f", {self.recompute} recompute"
        return f"dp {self.dp} tp {self.tp}{f' ZeRO {self.zero_stage}' if self.zero_stage else ''}{again}"


@dataclass(frozen=True, slots=True)
class StrategyPrices:
    """A strategy at one micro-batch: its parts, what is handed on between stages alike, and its residual stream."""

    parts: ModelParts
    between_ns: tuple[int, int]
    spec: TensorSpec
    layout: NdSbp


@dataclass(slots=True)
class LayerPricing:
    """Prices strategies of one request, each once; `begin` starts a method's clock, which pricing does not count on.

    Published methods measure or model layers beforehand; so what it takes here is told apart, in `spent_s`.
    """

    request: Request
    short: Model
    spent_s: float = 0.0
    _known: dict[object, StrategyPrices | None] = field(default_factory=dict)
    _signatures: dict[object, Mapping[str, Signature]] = field(default_factory=dict)
    _messages: dict[object, int] = field(default_factory=dict)
    _own_end_s: float = 0.0

    def begin(self, time_limit_s: float) -> None:
        """A method begins, with so much time of its own."""
        self._own_end_s = time.monotonic() - self.spent_s + time_limit_s

    def is_over(self) -> bool:
        """Whether the method's own time is."""
        return time.monotonic() - self.spent_s >= self._own_end_s

    @property
    def layers(self) -> int:
        """Of the model."""
        return self.request.model.layers

    @property
    def limit_bytes(self) -> int:
        """Of a rank."""
        return self.request.memory_limit_bytes

    def overlap(self, strategies: Iterable[Strategy], stages: int) -> Overlap:
        """How communication runs beside computation; of several, on the mesh where it takes least."""
        configs = [PlanConfig(each.dp, each.tp, stages, 1, 1, Schedule.ONE_F_ONE_B) for each in strategies]
        return min((self.request.overlap_of(each) for each in configs), key=lambda each: each.shared_ticks)

    def meshes(self, ranks: int) -> Iterator[tuple[int, int]]:
        """(dp, tp): tensor axes stay within a node and divide the heads, as Megatron has them."""
        heads, most = int(getattr(self.request.model, "heads", 0)), self.request.cost.cluster.devices_per_node
        for tp in divisors(ranks):
            if tp <= most and heads % tp == 0:
                yield ranks // tp, tp

    def counts(self) -> Iterator[tuple[int, int]]:
        """(micro-batches of a step, samples of each on all data-parallel ranks together)."""
        batch = self.request.training.global_batch
        for count in divisors(batch):
            yield count, batch // count

    def prices(self, strategy: Strategy, samples: int, count: int) -> StrategyPrices | None:
        """A strategy at a micro-batch of so many samples on all its ranks, one of `count`; None where there is none."""
        micro, rest = divmod(samples, strategy.dp)
        if rest or not micro or micro > LARGEST_MICRO_BATCH:
            return None
        key, begin = (strategy, micro, count > 1), time.monotonic()
        if key not in self._known:
            try:
                self._known[key] = self._put_together(strategy, micro, count)
            finally:
                self.spent_s += time.monotonic() - begin
        return self._known[key]

    def crossing_ns(self, source: Strategy, target: Strategy, samples: int, count: int, *, apart: bool) -> int:
        """What the residual stream takes from layers of one strategy to another's, on the same ranks or apart."""
        key, begin = (source, target, samples, count > 1, apart), time.monotonic()
        before, after = (self.prices(each, samples, count) for each in (source, target))
        if before is None or after is None:
            raise ValueError("a strategy that cannot be laid out")
        if key not in self._messages:
            here, there = (Placement(tuple(range(s.ranks)), (s.dp, s.tp), ("data", "tensor")) for s in (source, target))
            if apart:
                there = replace(there, devices=tuple(range(source.ranks, source.ranks + target.ranks)))
            prices = Converter(self.request.cost, (here, there)).prices_ns(
                before.spec, Home(0, before.layout), 1, after.layout
            )
            self._messages[key] = int(sum(prices))
            self.spent_s += time.monotonic() - begin
        return self._messages[key]

    def _put_together(self, strategy: Strategy, micro: int, count: int) -> StrategyPrices | None:
        few = replace(strategy, dp=min(strategy.dp, 2))
        own = self._direct(few, micro, count)
        if strategy == few or own is None:
            return own
        one, wide = self._direct(few, 1, count), self._direct(strategy, 1, count)
        if one is None or wide is None:
            return None
        models = wide.parts, own.parts, one.parts
        parts = ModelParts(*(_sum(*(getattr(m, name) for m in models)) for name in ("first", "middle", "last")))
        forward_ns, backward_ns = (max(wide.between_ns[i] + own.between_ns[i] - one.between_ns[i], 0) for i in (0, 1))
        spec = replace(own.spec, shape=(micro * strategy.dp, *own.spec.shape[1:]))
        return StrategyPrices(parts, (forward_ns, backward_ns), spec, own.layout)

    def _direct(self, strategy: Strategy, micro: int, count: int) -> StrategyPrices | None:
        """The layouts of both axes, on the mesh itself."""
        key = ("direct", strategy, micro, count > 1)
        if key not in self._known:
            try:
                self._known[key] = self._on_mesh(strategy, micro, count)
            except SbplanError:
                self._known[key] = None
        return self._known[key]

    def _on_mesh(self, strategy: Strategy, micro: int, count: int) -> StrategyPrices:
        space = self._space(_config(strategy, micro, count))
        graph, signatures = space.graph, self._zipped(strategy)
        layout = lay_out(graph, space.stages, signatures, space.converter)
        arrangement = arrange(graph, layout, space.pipeline)
        pair = placements_of(replace(_config(strategy, micro, count), pp=2))
        between_ns = messages_ns(space, signatures, Converter(self.request.cost, pair))
        stream = _residual_stream(graph)
        home = home_of(graph, space.stages, signatures, stream)
        if home is None:
            raise ValueError(f"{stream} is nowhere")
        parts = parts_of(graph, layout, arrangement, self.request.cost)
        return StrategyPrices(parts, between_ns, graph.values[stream].spec, home.layout)

    def _space(self, config: PlanConfig) -> SearchSpace:
        batch = config.dp * config.micro_batch * config.num_micro_batches
        training = replace(self.request.training, global_batch=batch)
        request = replace(self.request, model=self.short, training=training)
        return space_of(request, config, ("samples split", "samples shared"))

    def _zipped(self, strategy: Strategy) -> Mapping[str, Signature]:
        """The signatures of both axes, each found on two ranks."""
        least = replace(strategy, dp=min(strategy.dp, 2), tp=min(strategy.tp, 2))
        data = self._along(replace(least, dp=2), 0) if strategy.dp > 1 else None
        # Below stage 3 of ZeRO the graph is the same.
        alone = least if strategy.zero_stage == 3 else replace(least, dp=1, zero_stage=0)
        tensor = self._along(alone, 1) if strategy.tp > 1 else None
        if data is None or tensor is None:
            return data or tensor or self._along(replace(least, dp=1, tp=1), 0)
        return {name: _both(signature, tensor[name]) for name, signature in data.items()}

    def _along(self, strategy: Strategy, axis: int) -> Mapping[str, Signature]:
        """The best signatures along one axis, what the other one has aside."""
        key = (strategy, axis) if axis else (replace(strategy, tp=1, searched=False), axis)
        if key not in self._signatures:
            config = _config(strategy, 1, MANY)
            alone = replace(config, dp=1, zero_stage=0) if axis else replace(config, tp=1)
            space = self._space(alone)
            if axis and config.zero_stage:  # its graph gathers parameters, which the other axis has to lay out as well
                batch = config.dp * MANY
                training = replace(self.request.training, global_batch=batch, num_micro_batches=MANY)
                graph = planned_graph(self.short, training, config)
                space = replace(space, graph=graph, stages=assign_stages(graph, placements_of(alone)))
            rules = AlongAxes({axis: self._rule(space.graph, strategy, axis)} if alone.mesh[axis] > 1 else {})
            problem = layout_problem(replace(space, wanted=rules.wanted, known={}))
            found = integer_program(problem.problem, Budget.of(SOLVING_S))
            if found.choice is None:
                found = elimination(problem.problem, Budget.of(SOLVING_S))
            if found.choice is None:
                raise SbplanError(f"no layouts of {strategy} along axis {axis} in time")
            self._signatures[key] = problem.signatures(found.choice)
        return self._signatures[key]

    def _rule(self, graph: Graph, strategy: Strategy, axis: int) -> AxisRule:
        if axis:
            free = shared_samples_axis(graph) if strategy.searched else tensor_parallel(graph)

            def whole_samples(op: Op, name: str, sbp: Sbp) -> bool:
                """Samples are the data axis's."""
                value = graph.values[name]
                by_sample = (
                    value.rate is Rate.MICRO_BATCH and value.spec.shape[:1] == (strategy.dp,) and sbp == Split(0)
                )
                return free(op, name, sbp) and not by_sample

            return whole_samples
        follows = sample_flow(graph, strategy.dp)
        if strategy.zero_stage:
            return follows

        def replicated(op: Op, name: str, sbp: Sbp) -> bool:
            return follows(op, name, sbp) and (graph.values[name].role is not Role.VARIABLE or sbp == B)

        return replicated


def _config(strategy: Strategy, micro: int, count: int) -> PlanConfig:
    schedule, few = Schedule.ONE_F_ONE_B, min(count, MANY)
    zero = strategy.zero_stage if strategy.dp > 1 else 0
    return PlanConfig(strategy.dp, strategy.tp, 1, micro, few, schedule, recompute=strategy.recompute, zero_stage=zero)


def _both(data: Signature, tensor: Signature) -> Signature:
    """A signature of two axes from one along each."""
    sides = (
        tuple((one[0], other[1]) for one, other in zip(mine, theirs, strict=True))
        for mine, theirs in (
            (data.inputs, tensor.inputs),
            (data.outputs, tensor.outputs),
            (data.updates, tensor.updates),
        )
    )
    return Signature(*sides)


def _residual_stream(graph: Graph) -> str:
    """The largest value that a layer hands to the next one."""
    handed = [
        name
        for name, op in graph.producer.items()
        if op.layer == 0
        and op.phase is Phase.FORWARD
        and graph.values[name].rate is Rate.MICRO_BATCH
        and any(reader.layer == MIDDLE for reader in graph.consumers[name])
    ]
    return max(handed, key=lambda name: graph.values[name].spec.nbytes)


def _sum(wide: LayerPart, own: LayerPart, one: LayerPart) -> LayerPart:
    """What a micro-batch of one sample takes on the wide mesh, and what more samples add on the narrow one."""
    names = (each.name for each in fields(LayerPart))
    return LayerPart(**{n: max(getattr(wide, n) + getattr(own, n) - getattr(one, n), 0) for n in names})
