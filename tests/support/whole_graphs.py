"""Random whole graphs: ops of every family one after another, differentiated, updated, and laid out in any legal way.

Ops are drawn from their own examples. What flows is brought to an example's shape by a product from the left, one
from the right, and a reshape; operands that nothing flows into are parameters or inputs. What nobody reads ends in the
loss; a parameter that the loss does not reach is frozen. The same seed gives the same case.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.op_validation.subject import draw_operand
from strategy.base.errors import SbpError
from strategy.comm.boxing import BoxingStep
from strategy.comm.chains import Boxing
from strategy.cost.cost import CostModel
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Attrs, Graph, Op, Phase, Role, Value
from strategy.graph.ops import REGISTRY
from strategy.graph.ops.base import Example, OpDef
from strategy.graph.ops.copy import TO_DEVICE, TO_HOST
from strategy.graph.ops.skipped_steps import STEP
from strategy.graph.signature import op_signatures
from strategy.layout.arrangement import Pipeline
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import Layout, assign_stages
from strategy.layout.schedule import Schedule
from strategy.nn.losses import cross_entropy
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.autodiff import differentiate
from strategy.passes.loss_scale import LossScale, add_adjustment, scaled_count, scaled_loss
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement, Space, read_space
from strategy.sbp.sbp import NdSbp
from strategy.sbp.tensor import DType, Rate, Shape, TensorSpec
from tests.support.small_plans import cluster
from tests.support.step_prices import each

Array = npt.NDArray[Any]
ADAPTER = "matmul"
CODED = ("quantize", "scaled_matmul", "scaled_grouped_matmul", "block_scales", "block_scaled_matmul")
"""Families of what a pass puts behind the backward pass: no gradient goes through (see tests/test_low_precision.py)."""
KINKED = frozenset(("reduce_max", "reduce_min", "max_pool", "maximum", "minimum", "top_k", "argmax"))
"""Their result jumps where operands tie, so each operand gets noise of its own."""
COMMON = frozenset(("binary", "elementwise", "linear", "loss", "matmul", "optimizer", "reduction", "shape"))
"""Families that are in every graph anyway."""
MESHES: tuple[tuple[Shape, ...], ...] = (
    *(((2, 2),), ((2, 2),), ((2, 3),), ((3, 2),), ((2, 2), (2,)), ((2, 2), (1, 2))),
    *(((1,),), ((2,),), ((3,),), ((4,),), ((5,),), ((6,),), ((2,), (2,)), ((3,), (3,)), ((1,), (2,)), ((4,), (2,))),
)
"""One mesh per stage."""
MOST_DRAWS = 200
SCALED_SHARE = 0.3


@dataclass(frozen=True)
class Operand:
    """How an input or variable is drawn."""

    spec: TensorSpec
    bounds: tuple[float, float] | None
    position: int


@dataclass(frozen=True)
class WholeCase:
    """A training step of a random graph, laid out at random, with its operands."""

    seed: int
    graph: Graph
    kinds: tuple[str, ...]
    """Of the ops that were drawn from examples."""
    gradients: dict[str, str]
    operands: dict[str, Operand]
    layout: Layout
    pipeline: Pipeline
    cost: CostModel
    dtype: DType

    @property
    def ranks(self) -> int:
        """Of all stages."""
        return sum(len(placement.devices) for placement in self.layout.stages.placements)

    def variables(self) -> dict[str, Array]:
        """Every variable as it starts."""
        rng = np.random.default_rng((self.seed, 0))
        return {v.name: self._draw(v.name, rng) for v in self.graph.with_role(Role.VARIABLE)}

    def batches(self) -> list[dict[str, Array]]:
        """The graph's inputs, a mapping per micro-batch."""
        return [
            {
                v.name: self._draw(v.name, np.random.default_rng((self.seed, 1 + number, i)))
                for i, v in enumerate(self.graph.with_role(Role.INPUT))
            }
            for number in range(self.pipeline.num_micro_batches)
        ]

    def _draw(self, name: str, rng: np.random.Generator) -> Array:
        operand = self.operands[name]
        return draw_operand(operand.spec, operand.bounds, operand.position, rng)


def family_of(kind: str) -> str:
    """The file that an op kind is written in."""
    return REGISTRY[kind].infer.__module__.rpartition(".")[2] if kind in REGISTRY else ""


@cache
def forward_kinds() -> dict[str, tuple[str, ...]]:
    """Family -> its kinds that a graph can be grown with: with examples, and no gradients or updates themselves."""
    found: dict[str, list[str]] = {}
    for family, kind in _kinds():
        found.setdefault(family, []).append(kind)
    return {family: tuple(kinds) for family, kinds in found.items()}


def _kinds() -> list[tuple[str, str]]:
    return [(family_of(kind), kind) for kind, definition in REGISTRY.items() if _grows(kind, definition)]


def _grows(kind: str, definition: OpDef) -> bool:
    usable = any(example.inputs and not example.updates for example in definition.examples)
    usable = usable and family_of(kind) not in CODED
    return usable and not kind.endswith("_grad") and not definition.accumulates


def random_whole_graph(seed: int, *, ranks: int | None = None) -> WholeCase:
    """A case; of so many ranks, if that is said."""
    rng = random.Random(seed)
    meshes = rng.choice([m for m in MESHES if ranks is None or sum(map(math.prod, m)) == ranks])
    micro_batches = rng.choice((1, 1, 2, 3))
    dtype = DType.FLOAT32 if rng.random() < 0.15 else DType.FLOAT64
    grower = _Grower(rng, dtype)
    graph, gradients = grower.grow(micro_batches)
    placements, first = [], 0
    for mesh in meshes:
        size = math.prod(mesh)
        placements.append(Placement(tuple(range(first, first + size)), mesh, ("data", "tensor")[: len(mesh)]))
        first += size
    pipeline = Pipeline(micro_batches, rng.choice([s for s in Schedule if s.default_laps == 1]), rng.random() < 0.5)
    cost = CostModel(cluster(first, overlaps=pipeline.overlaps), {})
    pipeline = replace(pipeline, bucket_bytes=(0, 128, 1 << 30)[seed % 3], exchange_streams=1 + seed % 2)
    layout = _random_layout(rng, graph, tuple(placements), cost)
    return WholeCase(seed, graph, tuple(grower.kinds), gradients, grower.operands, layout, pipeline, cost, dtype)


def _converter(rng: random.Random, cost: CostModel, placements: tuple[Placement, ...]) -> Converter:
    """Boxing steps have random prices, so that chains differ from case to case."""
    prices: dict[tuple[ActKind, tuple[int, ...]], float] = {}

    def price(spec: TensorSpec, source: NdSbp, step: BoxingStep) -> float:
        return prices.setdefault((step.kind, step.axes), rng.uniform(0.1, 1.0))

    converter = Converter(cost, placements)
    converter.boxings = [Boxing(placement, each(price)) for placement in placements]
    return converter


def _random_layout(rng: random.Random, graph: Graph, placements: tuple[Placement, ...], cost: CostModel) -> Layout:
    """Stages cut anywhere, a random legal signature for every op."""
    forward = [op.name for op in graph.ops if op.phase is Phase.FORWARD]
    cut = rng.randint(1, len(forward) - 1)
    pins = {name: int(index >= cut) * (len(placements) - 1) for index, name in enumerate(forward)}
    stages = assign_stages(graph, placements, pins=pins)
    converter = _converter(rng, cost, placements)
    for _ in range(MOST_DRAWS):
        drawn = {op.name: rng.choice(op_signatures(graph, op, stages.placement(op.name).mesh)) for op in graph.ops}
        try:
            return lay_out(graph, stages, drawn, converter)
        except SbpError:  # some conversion does not exist
            continue
    raise AssertionError(f"no layout of {MOST_DRAWS} can be made")


@dataclass(slots=True)
class _Grower:
    rng: random.Random
    dtype: DType
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    operands: dict[str, Operand] = field(default_factory=dict)
    live: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    count: int = 0

    def grow(self, micro_batches: int) -> tuple[Graph, dict[str, str]]:
        """The graph of a training step, and variable -> its gradient of the step."""
        rng = self.rng
        families = forward_kinds()
        self.live.append(self._leaf("x", TensorSpec((rng.randint(4, 7), rng.randint(4, 8)), self.dtype), trained=False))
        rare = sorted(family for family in families if family not in COMMON)
        common = sorted(family for family in families if family in COMMON)
        for family in (*rng.sample(rare, k=2), *rng.sample(common, k=rng.choice((0, 1)))):
            kind = rng.choice(families[family])
            usable = [e for e in REGISTRY[kind].examples if e.inputs and not e.updates]
            self._apply(kind, rng.choice(usable))
        loss, count = self._loss()
        scale = self._scaled(loss) if rng.random() < SCALED_SHARE else None
        wanted, frozen = (loss, set()) if scale is None else (scale.loss, {scale.scale})
        terms = differentiate(self.builder, wanted, frozen=frozen)
        gradients = {name: self._total(name, parts, micro_batches) for name, parts in terms.items()}
        self._update(gradients, count, micro_batches, scale)
        self._accumulate_early()
        return self.builder.build(loss=loss), gradients

    def _apply(self, kind: str, example: Example) -> None:
        """An op on one of its examples: something flows into at least one of its operands of floats."""
        self.count += 1
        rng, name = self.rng, f"{kind}{self.count}"
        floats = [i for i, spec in enumerate(example.inputs) if spec.dtype.is_float]
        flowing = {rng.choice(floats)} if floats else set()
        flowing |= {i for i in floats if rng.random() < 0.3}
        inputs = []
        for position, spec in enumerate(example.inputs):
            bounds = example.ranges.get(position)
            if spec.ragged is not None:
                inputs.append(self._rows(name, position, spec))
            elif position in flowing:
                x = self._adapted(f"{name}.in{position}", self._pick(), spec.shape)
                if bounds is not None or rng.random() < 0.3:
                    x = self._squashed(f"{name}.in{position}", x, bounds or (-2.0, 2.0))
                if kind in KINKED:
                    noise = self._leaf(f"{name}.noise{position}", self._spec(spec), trained=False)
                    x = self._add(f"{name}.noisy{position}", "add", (x, noise))
                inputs.append(x)
            else:
                trained = spec.dtype.is_float and rng.random() < 0.7
                inputs.append(
                    self._leaf(f"{name}.w{position}", self._spec(spec), bounds, trained=trained, position=position)
                )
        if read_space(kind) is Space.HOST:
            inputs = [self._add(f"{name}.there{i}", TO_HOST, (x,)) for i, x in enumerate(inputs)]
        attrs = {**example.attrs, **({"dtype": str(self.dtype)} if "dtype" in example.attrs else {})}
        outputs = self.builder.add(name, kind, inputs, labels=[str(i) for i in range(1, 16)], attrs=attrs)
        self.kinds.append(kind)
        if self.builder.values[outputs[0]].space is Space.HOST:
            outputs = (self._add(f"{name}.back", TO_DEVICE, (outputs[0],)),)
        if REGISTRY[kind].gradient is not None and self.builder.spec(outputs[0]).dtype is self.dtype:
            self.live.append(self._tokens(name, outputs[0]))

    def _rows(self, name: str, position: int, spec: TensorSpec) -> str:
        """Ragged rows: something that flows, sent where random choices, alike for all operands of an op, say."""
        assert spec.ragged is not None
        x = self._adapted(f"{name}.in{position}", self._pick(), spec.shape[1:])
        attrs: Attrs = {"experts": spec.shape[0], "imbalance": 1.0, "room": 0.0}
        return self._add(f"{name}.rows{position}", "dropless_dispatch", (x, self._chosen(name, spec)), attrs)

    def _chosen(self, name: str, spec: TensorSpec) -> str:
        assert spec.ragged is not None
        leaf = f"{name}.chosen"
        if leaf not in self.builder.values:
            shape = (*spec.shape[1:-1], spec.ragged.most)
            self._leaf(leaf, TensorSpec(shape, DType.INT32), (-1, spec.shape[0]), trained=False)
        return leaf

    def _tokens(self, name: str, x: str) -> str:
        """`x`, back from experts if it is ragged."""
        spec = self.builder.spec(x)
        if spec.ragged is None:
            return x
        return self._add(f"{name}.tokens", "dropless_combine", (x, self._chosen(name, spec)))

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return replace(spec, dtype=self.dtype) if spec.dtype.is_float else spec

    def _pick(self) -> str:
        """A live value: mostly one that nobody has read."""
        read = {name for op in self.builder.ops for name in op.inputs}
        fresh = [name for name in self.live if name not in read]
        return self.rng.choice(fresh if fresh and self.rng.random() < 0.8 else self.live)

    def _leaf(
        self,
        name: str,
        spec: TensorSpec,
        bounds: tuple[float, float] | None = None,
        *,
        trained: bool,
        position: int = 0,
        parameter: str = "",
    ) -> str:
        role, rate = (Role.VARIABLE, Rate.STEP) if trained else (Role.INPUT, Rate.MICRO_BATCH)
        self.operands[name] = Operand(spec, bounds, position)
        init = "zeros" if trained else ""
        return self.builder.declare(Value(name, spec, rate, role, init, parameter=parameter))

    def _add(self, name: str, kind: str, inputs: Sequence[str], attrs: Attrs | None = None) -> str:
        return self.builder.add(name, kind, inputs, attrs=attrs)[0]

    def _adapted(self, name: str, x: str, shape: Shape) -> str:
        """`x` brought to another shape: L x R, with parameters L and R where the numbers of rows or columns differ."""
        found = self.builder.spec(x).shape
        if found == shape and self.rng.random() < 0.5:
            return x
        rows, columns = _as_matrix(found)
        wanted_rows, wanted_columns = _as_matrix(shape)
        same_size = rows * columns == wanted_rows * wanted_columns
        if not same_size or found == shape:
            x = self._reshaped(f"{name}.rows", x, (rows, columns))
            if rows != wanted_rows:
                left = self._weight(f"{name}.left.weight", (wanted_rows, rows), rows)
                x = self._add(f"{name}.left", ADAPTER, (left, x))
            if columns != wanted_columns or rows == wanted_rows:
                right = self._weight(f"{name}.right.weight", (columns, wanted_columns), columns)
                x = self._add(f"{name}.right", ADAPTER, (x, right))
        return self._reshaped(f"{name}.shape", x, shape)

    def _weight(self, name: str, shape: Shape, fan_in: int) -> str:
        reach = math.sqrt(3.0 / fan_in)  # a uniform distribution of this reach has variance 1 / fan_in
        return self._leaf(name, TensorSpec(shape, self.dtype), (-reach, reach), trained=True)

    def _reshaped(self, name: str, x: str, shape: Shape) -> str:
        if self.builder.spec(x).shape == shape:
            return x
        return self._add(name, "reshape", (x,), {"shape": shape})

    def _squashed(self, name: str, x: str, bounds: tuple[float, float]) -> str:
        """`x` brought into a range."""
        low, high = bounds
        x = self._add(f"{name}.sigmoid", "sigmoid", (x,))
        x = self._add(f"{name}.scale", "scale", (x,), {"factor": high - low})
        offset = self._leaf(f"{name}.low", TensorSpec((), self.dtype), (low, low), trained=False)
        return self._add(f"{name}.offset", "add", (x, offset))

    def _loss(self) -> tuple[str, str]:
        """Everything that nobody reads, added up as logits, against random labels."""
        shape = (self.rng.randint(4, 6), self.rng.randint(5, 8))
        read = {name for op in self.builder.ops for name in op.inputs}
        ends = [name for name in self.live if name not in read] or self.live[-1:]
        terms = [self._adapted(f"end{i}", name, shape) for i, name in enumerate(ends)]
        logits = terms[0]
        for i, term in enumerate(terms[1:]):
            logits = self._add(f"logits{i}", "add", (logits, term))
        logits = self._add(
            "logits", "add", (logits, self._leaf("bias", TensorSpec(shape[1:], self.dtype), trained=True))
        )
        labels = self._leaf("labels", TensorSpec(shape[:1], DType.INT32), (0, shape[1]), trained=False)
        tracer = Tracer(self.builder)
        loss, count = cross_entropy(Tensor(tracer, logits), Tensor(tracer, labels))
        return loss.name, count.name

    def _scaled(self, loss: str) -> LossScale:
        """The loss times a scale; the counters begin anywhere."""
        found = scaled_loss(self.builder, loss, 1.0)
        self.operands[found.scale] = Operand(self.builder.spec(found.scale), (0.5, 64.0), 0)
        self.operands[found.good] = Operand(STEP, (0, 3), 0)
        self._leaf("step:applied", STEP, (0, 9), trained=True)
        return found

    def _total(self, name: str, terms: Sequence[str], micro_batches: int) -> str:
        """A variable's gradient of the step: every use accumulated where it is, then added up."""
        if micro_batches > 1:
            terms = [
                self._accumulated(term) if self.builder.values[term].rate is Rate.MICRO_BATCH else term
                for term in terms
            ]
        if len(terms) == 1:
            return terms[0]
        return self.builder.add(self.builder.derived(name, "grad"), "add_n", terms, phase=Phase.UPDATE)[0]

    def _accumulated(self, term: str) -> str:
        """The step's sum of a gradient: one, though it is that of several variables."""
        line = self.builder.derived(term, "sum")
        known = line.name in self.builder.values
        return line.name if known else self.builder.add(line, "accumulate", (term,), phase=Phase.BACKWARD)[0]

    def _accumulate_early(self) -> None:
        """Every accumulation right after the op that feeds it."""
        waiting = {op.inputs[0]: op for op in self.builder.ops if op.kind == "accumulate"}
        ordered: list[Op] = []
        for op in self.builder.ops:
            if op.kind != "accumulate":
                ordered += [op, *(waiting[name] for name in op.outputs if name in waiting)]
        self.builder.ops = ordered

    def _update(self, gradients: dict[str, str], count: str, micro_batches: int, scale: LossScale | None) -> None:
        """One step of SGD, with the mean over the count and the clip of the global norm as one factor.

        With a scaled loss, the count is scaled too, and the step may be skipped.
        """
        add = self.builder.add
        if micro_batches > 1:
            count = add("count:sum", "accumulate", (count,), phase=Phase.FORWARD)[0]
        squares = [
            add(self.builder.derived(name, "square"), "square_sum", (gradient,), phase=Phase.UPDATE)[0]
            for name, gradient in gradients.items()
        ]
        square = add("square", "add_n", squares, phase=Phase.UPDATE)[0]
        divisor = count if scale is None else scaled_count(self.builder, count, scale)
        factor, norm = add(
            "clip", "clip_scale", (square, divisor), labels=("norm",), attrs={"max_norm": 1.0}, phase=Phase.UPDATE
        )
        step: tuple[str, ...] = ()
        if scale is not None:
            step = add("step", "count_step", (norm,), updates=("step:applied",), phase=Phase.UPDATE)
            add_adjustment(self.builder, scale, {"period": 2, "growth": 2.0, "backoff": 0.5})
        rate = {"lr": 0.1, "decay": "constant", "warm_up": 2, "steps": 9, "final": 0.0, "power": 1.0, "factor": 1.0}
        attrs: Attrs = {**rate, "dtype": str(self.dtype)}
        lr = add("learning_rate", "learning_rate", step, attrs=attrs, phase=Phase.UPDATE)[0]
        momentum = self.rng.choice((0.0, 0.9))
        attrs = {"momentum": momentum, "nesterov": self.rng.choice((0, 1)) if momentum else 0, "weight_decay": 0.1}
        for name, gradient in gradients.items():
            updates = [name]
            if momentum:
                spec = self.builder.spec(name)
                updates.append(self._leaf(f"{name}:momentum", spec, trained=True, position=1, parameter=name))
            inputs, line = (gradient, factor, lr, *step), self.builder.derived(name, "sgd")
            add(line, "sgd", inputs, updates=updates, attrs=attrs, phase=Phase.UPDATE)


def _as_matrix(shape: Shape) -> tuple[int, int]:
    """Rows and columns of a tensor: its first dim, and the rest."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)
