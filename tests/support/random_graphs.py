"""Random small graphs over the real ops, laid out in every legal way: the oracle of the layout problem.

A case is a graph of at most eight ops, a pipeline of one or two meshes, random constants of the cost model, and a few
of the legal signatures of every op. `every_layout` lays all combinations out one by one and prices what comes out, so
that it shares nothing with `strategy.space.layout_problem` but the meaning.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from strategy.base.errors import SbpError
from strategy.bounds.path_mix import mixed
from strategy.cost.cost import CostModel
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Lineage, Op, Phase, Role, Value
from strategy.graph.signature import Signature, op_signatures, piece_specs
from strategy.hardware.cluster import Cluster, Device, Link
from strategy.layout.arrangement import Pipeline, arrange
from strategy.layout.convert import Converter, lay_out
from strategy.layout.critical_path import critical_path
from strategy.layout.layout import Layout, Stages
from strategy.layout.objective import Priced as PricedLayout
from strategy.layout.objective import overlap_of
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import MeanPath, StepTimes, in_ticks, mean_path, no_times, step_ns
from strategy.lowering.lifetime_peak import lifetime_peaks
from strategy.sbp.placement import Placement
from strategy.sbp.tensor import DType, Rate, Shape, TensorSpec
from strategy.space.space import SearchSpace

MOST_OPS = 8
ADAMW = {"lr": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.0}


@dataclass(frozen=True)
class GraphCase:
    """A search space small enough to list."""

    graph: Graph
    stages: Stages
    pipeline: Pipeline
    cost: CostModel
    paths: MeanPath
    options: dict[str, tuple[Signature, ...]]

    @cached_property
    def space(self) -> SearchSpace:
        """The same, as the layout problem wants it."""
        return SearchSpace(
            self.graph,
            self.stages,
            self.pipeline,
            self.cost,
            Converter(self.cost, self.stages.placements),
            lambda op, signature: signature in self.options[op.name],
            self.paths,
        )

    @property
    def mesh(self) -> Shape:
        """The mesh of every stage."""
        return self.stages.placements[0].mesh

    @property
    def size(self) -> int:
        """How many combinations of signatures there are."""
        return math.prod(len(self.options[ops[0].name]) for ops in ties(self.graph, self.options))

    @property
    def uneven(self) -> bool:
        """Whether some signature cuts a dim into unequal parts."""
        ranks = math.prod(self.mesh)
        for op in self.graph.ops:
            specs = self.graph.specs((*op.inputs, *op.outputs, *op.updates))
            for signature in self.options[op.name]:
                for spec, layout in zip(specs, signature.layouts, strict=True):
                    cuts = math.prod(n for sbp, n in zip(layout, self.mesh, strict=True) if str(sbp)[0] == "S")
                    if piece_specs([spec], [layout], self.mesh)[0].size * cuts > spec.size and ranks > 1:
                        return True
        return False


@dataclass(frozen=True, slots=True)
class Priced:
    """One combination: the length of the case's paths, its objective, its largest peak, and its layout."""

    cost_ns: int
    objective_ns: int
    peak: int
    layout: Layout


def every_layout(case: GraphCase) -> Iterator[Priced]:
    """Every combination of signatures between which conversions exist."""
    groups = ties(case.graph, case.options)
    converter = Converter(case.cost, case.stages.placements)
    for picks in itertools.product(*(case.options[ops[0].name] for ops in groups)):
        chosen = {op.name: pick for ops, pick in zip(groups, picks, strict=True) for op in ops}
        try:
            layout = lay_out(case.graph, case.stages, chosen, converter)
        except SbpError:
            continue
        yield price(case, layout)


def price(case: GraphCase, layout: Layout) -> Priced:
    """What a layout costs and holds, by the arrangement alone."""
    arrangement = arrange(case.graph, layout, case.pipeline)
    times = PricedLayout(case.graph, layout, case.pipeline, case.cost).times
    peaks = lifetime_peaks(case.graph, case.stages, arrangement)
    objective = step_ns(case.pipeline.schedule, case.pipeline.num_micro_batches, times)
    return Priced(case.space.paths.length(times), objective, max(peaks), layout)


def ties(graph: Graph, options: dict[str, tuple[Signature, ...]]) -> list[list[Op]]:
    """Ops that take one signature together: alike in template, kind, shapes and options."""
    found: dict[object, list[Op]] = {}
    for op in graph.ops:
        specs = graph.specs((*op.inputs, *op.outputs, *op.updates))
        key = (graph.template_of(op), op.kind, specs, options[op.name])
        found.setdefault(key, []).append(op)
    return list(found.values())


def random_case(seed: int, *, axes: int = 1, stages: int = 1, most: int = 400) -> GraphCase:
    """A case with at most `most` combinations; the same seed gives the same case.

    Args:
        seed: of everything random in it.
        axes: of every stage's mesh; one axis has 2 or 3 ranks, of two one may have a single rank.
        stages: of the pipeline.
        most: combinations of signatures.
    """
    rng = random.Random(seed)
    mesh = (rng.choice((2, 3)),) if axes == 1 else rng.choice(((2, 2), (2, 2), (2, 3), (3, 2), (2, 1)))
    pipeline = Pipeline(
        rng.choice((1, 1, 2, 3)), rng.choice([s for s in Schedule if s.default_laps == 1]), rng.random() < 0.5
    )
    graph = random_graph(rng, num_micro_batches=pipeline.num_micro_batches)
    size = math.prod(mesh)
    names = ("data", "tensor")[:axes]
    placements = tuple(Placement(tuple(range(s * size, (s + 1) * size)), mesh, names) for s in range(stages))
    cost = _random_cost(rng, size * stages, overlaps=pipeline.overlaps)
    return GraphCase(
        graph,
        Stages(placements, _random_stages(rng, graph, stages)),
        pipeline,
        cost,
        random_paths(rng, pipeline, stages, cost),
        _random_options(rng, graph, mesh, most),
    )


def random_graph(rng: random.Random, *, num_micro_batches: int) -> Graph:
    """At most eight ops: a few forward, and where a parameter is trained its gradient, the sum of it, and its update.

    Parameters that nothing trains are frozen.
    """
    grower = _Grower(rng, accumulates=num_micro_batches > 1)
    if rng.random() < 0.3:
        grower.grow_layers()
    else:
        grower.grow()
    grower.builder.ops.sort(key=lambda op: tuple(Phase).index(op.phase))
    return grower.builder.build()


class _Grower:
    def __init__(self, rng: random.Random, *, accumulates: bool) -> None:
        self.rng = rng
        self.accumulates = accumulates
        self.builder = GraphBuilder()
        self.live: list[str] = []
        self.trained: list[tuple[str, str, str]] = []

    def grow(self) -> None:
        """A chain with branches, then training of the last parameter that has one."""
        rng = self.rng
        shape = tuple(self._dim() for _ in range(rng.choice((2, 2, 3))))
        self.live.append(self._embedded(shape[:2]) if rng.random() < 0.2 else self._input("x", shape))
        forward = rng.randint(2, MOST_OPS - (4 if self.accumulates else 3))
        while len(self.builder.ops) < forward:
            self._forward(f"op{len(self.builder.ops)}")
        if self.trained:
            self._train(*rng.choice(self.trained), prefix="")
        while len(self.builder.ops) < MOST_OPS and rng.random() < 0.3:
            self._reduced(f"end{len(self.builder.ops)}")

    def grow_layers(self) -> None:
        """Two layers of one template, of one width or of two: matmul, and either gelu or the training of the weight."""
        rows, width = self._dim(), self._dim()
        x = self._input("x", (rows, width))
        trains = self.rng.random() < 0.5 and not self.accumulates
        products = []
        for layer in range(2):
            following = width if self.rng.random() < 0.7 else self._dim()
            prefix = f"layers.{layer}."
            w = self._variable(f"{prefix}w", (self.builder.spec(x).shape[-1], following))
            y = self._add(f"{prefix}matmul", "matmul", (x, w), layer=layer)
            if trains:
                products.append((w, x, y))
                x = y
            else:
                self.live.append(x)
                x = self._add(f"{prefix}act", "gelu", (y,), layer=layer)
                residual = self.builder.spec(y) == self.builder.spec(self.live[-1])
                if residual and self.rng.random() < 0.5:
                    x = self._add(f"{prefix}residual", "add", (x, self.live[-1]), layer=layer)
        for layer, (w, x, y) in enumerate(products):
            self._train(w, x, y, prefix=f"layers.{layer}.", layer=layer)

    def _dim(self) -> int:
        return self.rng.randint(2, 6)

    def _input(self, name: str, shape: Shape, dtype: DType = DType.FLOAT32) -> str:
        return self.builder.declare(Value(name, TensorSpec(shape, dtype), Rate.MICRO_BATCH, Role.INPUT))

    def _variable(self, name: str, shape: Shape, *, of: str = "") -> str:
        return self.builder.declare(Value(name, TensorSpec(shape), Rate.STEP, Role.VARIABLE, "zeros", parameter=of))

    def _add(
        self,
        name: str,
        kind: str,
        inputs: Sequence[str],
        *,
        attrs: dict[str, int | float | str | tuple[int, ...]] | None = None,
        phase: Phase = Phase.FORWARD,
        layer: int | None = None,
        updates: Sequence[str] = (),
    ) -> str:
        template = name if layer is None else name.replace(f"layers.{layer}.", "layers.*.", 1)
        line = Lineage(name, template, parameter=updates[0] if updates else "")
        labels = ("1", "2", "3")
        made = self.builder.add(
            line, kind, inputs, labels=labels, attrs=attrs, phase=phase, layer=layer, updates=updates
        )
        return made[0] if made else ""

    def _embedded(self, shape: Shape) -> str:
        ids = self._input("ids", shape, DType.INT32)
        table = self._variable("table", (self._dim(), self._dim()))
        made = self._add("embed", "gather", (table, ids), attrs={"axis": 0})
        self.trained.append((table, ids, made))
        return made

    def _forward(self, name: str) -> None:
        """One op on live values: every kind in its turn, wider ones more often."""
        rng, spec = self.rng, self.builder.spec
        x = rng.choice(self.live[-3:])
        shape = spec(x).shape
        alike = [other for other in self.live if spec(other) == spec(x)]
        kind = rng.choice(("matmul", "matmul", "gelu", "add", "bias", "add_n", "layer_norm", "reshape", "transpose"))
        if kind == "matmul":
            w = self._variable(f"{name}.w", (shape[-1], self._dim()))
            made = self._add(name, "matmul", (x, w))
            self.trained.append((w, x, made))
        elif kind == "bias":
            bias = self._variable(f"{name}.bias", shape[-1:])
            made = self._add(name, "add", (x, bias))
            self.trained.append((bias, x, made))
        elif kind in ("add", "add_n"):
            made = self._add(name, kind, (x, rng.choice(alike)))
        elif kind == "layer_norm":
            affine = [self._input(f"{name}.{part}", shape[-1:]) for part in ("gain", "shift")]
            made = self._add(name, kind, (x, *affine))
        elif kind == "reshape":
            target = (shape[0] * shape[1], *shape[2:]) if len(shape) > 2 else (1, *shape)
            made = self._add(name, kind, (x,), attrs={"shape": target})
        elif kind == "transpose":
            made = self._add(name, kind, (x,), attrs={"perm": tuple(rng.sample(range(len(shape)), len(shape)))})
        else:
            made = self._add(name, kind, (x,))
        self.live.append(made)

    def _reduced(self, name: str) -> None:
        x = self.rng.choice(self.live)
        if self.rng.random() < 0.5:
            axes = tuple(range(len(self.builder.spec(x).shape) - self.rng.randint(0, 1)))
            self._add(name, "reduce_sum", (x,), attrs={"axes": axes, "keepdims": 0}, phase=Phase.BACKWARD)
        else:
            self._add(name, "square_sum", (x,), phase=Phase.BACKWARD)

    def _train(self, variable: str, x: str, y: str, *, prefix: str, layer: int | None = None) -> None:
        """The gradient of `variable`, that of y taken to be some live value like y; its sum, its norm, its update."""
        spec = self.builder.spec
        dy = self.rng.choice([name for name in (*self.live, y) if spec(name) == spec(y)])
        kind, operands = ("matmul_tn", (x, dy)) if len(spec(variable).shape) == 2 else ("reduce_sum", (dy,))
        attrs: dict[str, int | float | str | tuple[int, ...]] = {}
        if kind == "reduce_sum":
            attrs = {"axes": tuple(range(len(spec(dy).shape) - 1)), "keepdims": 0}
        if not spec(x).dtype.is_float:
            kind, attrs = "gather_grad", {"axis": 0, "rows": spec(variable).shape[0]}
        grad = self._add(f"{prefix}grad", kind, operands, attrs=attrs, phase=Phase.BACKWARD, layer=layer)
        if self.accumulates:
            grad = self._add(f"{prefix}sum", "accumulate", (grad,), phase=Phase.BACKWARD, layer=layer)
        square = self._add(f"{prefix}square", "square_sum", (grad,), phase=Phase.UPDATE, layer=layer)
        self._update(variable, grad, square, layer)

    def _update(self, variable: str, grad: str, factor: str, layer: int | None) -> None:
        shape = self.builder.spec(variable).shape
        moments = [self._variable(f"{variable}:{moment}", shape, of=variable) for moment in "mv"]
        self._add(
            f"{variable}:adamw",
            "adamw",
            (grad, factor, factor),
            attrs=dict(ADAMW),
            phase=Phase.UPDATE,
            layer=layer,
            updates=(variable, *moments),
        )


def _random_stages(rng: random.Random, graph: Graph, stages: int) -> dict[str, int]:
    """Forward ops in runs, the others anywhere."""
    if stages == 1:
        return dict.fromkeys((op.name for op in graph.ops), 0)
    cut = rng.randint(1, max(len(graph.ops) - 1, 1))
    return {
        op.name: int(time >= cut) if op.phase is Phase.FORWARD else rng.randrange(stages)
        for time, op in enumerate(graph.ops)
    }


def _random_cost(rng: random.Random, devices: int, *, overlaps: bool) -> CostModel:
    """Constants such that latency, bytes and FLOPs of tensors of some hundred bytes all decide now and then."""

    def rate() -> float:
        return float(10.0 ** rng.uniform(6, 10))

    def latency() -> float:
        return rng.choice((0.0, 1e-9, 1e-7, 1e-6))

    device = Device("random", "numpy", 2**40, rate(), rate(), latency(), slowdown=rng.choice((0.0, 0.2)))
    per_node = rng.choice((devices, 2, 1)) if devices % 2 == 0 else devices
    links = (Link(rate(), latency(), overlaps), Link(rate(), latency(), overlaps))
    return CostModel(Cluster("random", devices // per_node, per_node, device, *links), {}, latency())


def _random_options(rng: random.Random, graph: Graph, mesh: Shape, most: int) -> dict[str, tuple[Signature, ...]]:
    """Some of the legal signatures of every op, in their order; alike for ops that could be tied."""
    legal = {op.name: op_signatures(graph, op, mesh) for op in graph.ops}
    groups = ties(graph, legal)
    counts = [len(legal[ops[0].name]) for ops in groups]
    while math.prod(counts) > most:
        counts[rng.choice([i for i, count in enumerate(counts) if count == max(counts)])] -= 1
    options: dict[str, tuple[Signature, ...]] = {}
    for ops, count in zip(groups, counts, strict=True):
        signatures = legal[ops[0].name]
        kept = tuple(signatures[i] for i in sorted(rng.sample(range(len(signatures)), count)))
        options.update({op.name: kept for op in ops})
    return options


def random_paths(rng: random.Random, pipeline: Pipeline, stages: int, cost: CostModel) -> MeanPath:
    """The critical path of random times, or its mean with others."""

    def one() -> MeanPath:
        arrays = {
            name: np.array([rng.randrange(9) for _ in zeros.flat], np.int64).reshape(zeros.shape)
            for name, zeros in no_times(stages, pipeline.laps).items()
        }
        times = StepTimes(**arrays, overlap=overlap_of(pipeline, cost))
        path = critical_path(
            pipeline.schedule,
            pipeline.num_micro_batches,
            in_ticks(pipeline.schedule, pipeline.num_micro_batches, times),
        )
        return mean_path(pipeline.schedule, pipeline.num_micro_batches, times, path)

    return one() if rng.random() < 0.5 else mixed([one(), one()], [1, 1])
