"""An op tried out on its own examples: every signature on pieces against the whole, and its gradient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.builder import GraphBuilder
from strategy.gradient import GradientBuilder
from strategy.graph import Attrs, Graph, Op, Role, Value
from strategy.ops import op_definition
from strategy.ops.base import Call, Example, Workspace
from strategy.sbp import B, NdSbp, P, Partial, Reduce, Sbp, Split, is_legal_layout, local_box
from strategy.signature import Signature, op_signatures
from strategy.tensor import Box, DType, Rate, Shape, TensorSpec, box_shape
from tests.oracle import close, gather, scatter

Array = npt.NDArray[Any]
MESHES: tuple[Shape, ...] = ((2,), (3,), (4,), (2, 2))
P_MAX = Partial(Reduce.MAX)


@dataclass(frozen=True)
class Trial:
    """One op on one example, in double precision: inputs `x0`, `x1`, ..., variables `u0`, ..."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.number}"

    @property
    def example(self) -> Example:
        return op_definition(self.kind).examples[self.number]

    def builder(self) -> GraphBuilder:
        builder = GraphBuilder()
        example = self.example
        for i, spec in enumerate(map(double, example.inputs)):
            builder.declare(Value(f"x{i}", spec, Rate.MICRO_BATCH, Role.INPUT))
        for i, spec in enumerate(map(double, example.updates)):
            builder.declare(Value(f"u{i}", spec, Rate.STEP, Role.VARIABLE, "zeros"))
        names = [f"x{i}" for i in range(len(example.inputs))]
        variables = [f"u{i}" for i in range(len(example.updates))]
        builder.add("op", self.kind, names, labels=("1", "2", "3"), updates=variables, attrs=example.attrs)
        return builder

    def graph(self) -> Graph:
        return self.builder().build()

    def draw(self, rng: np.random.Generator) -> list[Array]:
        """Inputs, then variables."""
        example = self.example
        drawn = []
        for i, spec in enumerate((*example.inputs, *example.updates)):
            low, high = example.ranges.get(i, (-2.0, 2.0))
            if spec.dtype.is_float:
                steps = (np.arange(spec.size) + 0.5) / spec.size * (high - low) + low
                drawn.append(np.asarray(rng.permutation(steps)).reshape(spec.shape))
            else:
                drawn.append(rng.integers(int(low), int(high), spec.shape, spec.dtype))
        return drawn


def trials(kinds: Sequence[str]) -> list[Trial]:
    return [Trial(kind, number) for kind in kinds for number in range(len(op_definition(kind).examples))]


def double(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape, DType.FLOAT64) if spec.dtype.is_float else spec


def run_pieces(op: Op, arrays: Sequence[Array], boxes: Sequence[Box], out_boxes: Sequence[Box]) -> list[Array]:
    """One act; outputs (which start as NaN), then variables."""
    outputs = [np.full(box_shape(box), np.nan) for box in out_boxes]
    inputs, updates = arrays[: len(op.inputs)], [array.copy() for array in arrays[len(op.inputs) :]]
    call = Call(
        np, op.attrs, tuple(inputs), tuple(outputs), tuple(updates), tuple(boxes), tuple(out_boxes), Workspace(np)
    )
    op_definition(op.kind).run(call)
    return [*outputs, *updates]


def full_box(shape: Shape) -> Box:
    return tuple((0, size) for size in shape)


def whole(kind: str, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
    """Outputs of an op on one device."""
    specs = [TensorSpec(array.shape, DType(str(array.dtype))) for array in inputs]
    outputs = op_definition(kind).infer(specs, (), attrs)
    names = [tuple(f"{side}{i}" for i in range(len(many))) for side, many in (("x", specs), ("y", outputs))]
    op = Op("op", kind, names[0], names[1], attrs=attrs)
    return run_pieces(op, inputs, [full_box(s.shape) for s in specs], [full_box(s.shape) for s in outputs])


def boxes_at(specs: Sequence[TensorSpec], layouts: Sequence[NdSbp], mesh: Shape, rank: Shape) -> list[Box]:
    return [local_box(spec.shape, nd, mesh, rank) for spec, nd in zip(specs, layouts, strict=True)]


def terms_of_max(array: Array, parts: int, rng: np.random.Generator) -> list[Array]:
    winner = rng.integers(0, parts, array.shape)
    return [np.where(winner == part, array, array - rng.uniform(0.5, 2, array.shape)) for part in range(parts)]


def cut(array: Array, nd_sbp: NdSbp, mesh: Shape, rng: np.random.Generator) -> list[Array]:
    if nd_sbp and nd_sbp[0] == P_MAX:
        terms = terms_of_max(array, mesh[0], rng)
        return [piece for term in terms for piece in cut(term, nd_sbp[1:], mesh[1:], rng)]
    if not mesh:
        return [array.copy()]
    first = scatter(array, nd_sbp[:1], mesh[:1], rng)
    return [piece for part in first for piece in cut(part, nd_sbp[1:], mesh[1:], rng)]


def join(pieces: Sequence[Array], nd_sbp: NdSbp, mesh: Shape) -> Array:
    if not mesh:
        return pieces[0]
    stride = math.prod(mesh[1:])
    parts = [join(pieces[i * stride : (i + 1) * stride], nd_sbp[1:], mesh[1:]) for i in range(mesh[0])]
    if nd_sbp[0] == P_MAX:
        if len({part.shape for part in parts}) > 1:
            raise ValueError("terms have different shapes")
        return np.asarray(np.max(np.stack(parts), axis=0))
    return gather(parts, nd_sbp[:1], mesh[:1])


def is_right(trial: Trial, graph: Graph, signature: Signature, mesh: Shape, seed: int) -> bool:
    """Whether the pieces that the ranks compute are those of the whole result."""
    rng = np.random.default_rng(seed)
    (op,) = graph.ops
    reads, writes = graph.specs((*op.inputs, *op.updates)), graph.specs((*op.outputs, *op.updates))
    arrays = trial.draw(rng)
    full = [full_box(spec.shape) for spec in (*reads[: len(op.inputs)], *writes[: len(op.outputs)])]
    wanted = run_pieces(op, arrays, full[: len(op.inputs)], full[len(op.inputs) :])
    layouts = (*signature.inputs, *signature.updates)
    pieces = [cut(array, nd, mesh, rng) for array, nd in zip(arrays, layouts, strict=True)]
    found = []
    for index, rank in enumerate(itertools.product(*map(range, mesh))):
        local = [parts[index] for parts in pieces]
        boxes = boxes_at(reads[: len(op.inputs)], signature.inputs, mesh, rank)
        found.append(run_pieces(op, local, boxes, boxes_at(writes[: len(op.outputs)], signature.outputs, mesh, rank)))
    results = zip(zip(*found, strict=True), wanted, (*signature.outputs, *signature.updates), strict=True)
    try:
        return all(close(join(parts, nd, mesh), array) for parts, array, nd in results)
    except ValueError:
        return False


def wrong_signatures(trial: Trial) -> tuple[int, list[str]]:
    """How many listed signatures were run over all meshes, and those that do not give the whole."""
    graph = trial.graph()
    executed, wrong = 0, []
    for mesh in MESHES:
        for signature in op_signatures(graph, graph.ops[0], mesh):
            executed += 1
            if not is_right(trial, graph, signature, mesh, executed):
                wrong.append(f"{trial} on {mesh}: {short(signature)}")
    return executed, wrong


def short(signature: Signature) -> str:
    arrow = " -> ".join(
        ", ".join("".join(map(str, nd)) for nd in part) for part in (signature.inputs, signature.outputs)
    )
    return arrow.replace("P(sum)", "P")


def combinations(graph: Graph, mesh: Shape) -> Iterator[Signature]:
    """Every assignment of one SBP to every tensor of the op over one axis; P(max) for outputs and single inputs."""
    (op,) = graph.ops
    options: list[list[NdSbp]] = []
    for spec in graph.specs((*op.inputs, *op.outputs)):
        sbps: list[Sbp] = [B, *map(Split, range(len(spec.shape))), *([P] if spec.dtype.is_float else [])]
        options.append([(sbp,) for sbp in sbps if is_legal_layout(spec.shape, (sbp,), mesh)])
    for layouts in itertools.product(*options):
        yield Signature(layouts[: len(op.inputs)], layouts[len(op.inputs) :])


def unlisted_but_right(trial: Trial, mesh: Shape = (2,)) -> tuple[int, list[str]]:
    """How many combinations were tried, and those that are right although they are not listed."""
    graph = trial.graph()
    listed = set(op_signatures(graph, graph.ops[0], mesh))
    tried, right = 0, []
    with np.errstate(all="ignore"):
        for signature in combinations(graph, mesh):
            if signature in listed:
                continue
            tried += 1
            try:
                sound = all(is_right(trial, graph, signature, mesh, seed) for seed in range(2))
            except (ValueError, IndexError, ZeroDivisionError):
                sound = False
            if sound:
                right.append(short(signature))
    return tried, right


def gradient_errors(trial: Trial, skip: Sequence[int] = (), cells: int = 12) -> dict[str, float]:
    """Per float input, the largest error of its gradient at some cells against central differences, relatively."""
    builder = trial.builder()
    op = builder.ops[0]
    seed_spec = builder.spec("op")
    builder.declare(Value("seed", seed_spec, Rate.MICRO_BATCH, Role.INPUT))
    wanted = [n for i, n in enumerate(op.inputs) if builder.spec(n).dtype.is_float and i not in skip]
    gradients = {"op": ["seed"]}
    rule = op_definition(op.kind).gradient
    assert rule is not None
    rule(GradientBuilder(builder, op, frozenset(wanted), gradients))
    rng = np.random.default_rng(3)
    arrays, seed = trial.draw(rng), rng.standard_normal(seed_spec.shape)
    values = run_whole(builder, {**dict(zip(op.inputs, arrays, strict=True)), "seed": seed})
    errors = {}
    for name in wanted:
        at = arrays[op.inputs.index(name)]
        found, differences = values[gradients[name][0]], []
        assert found.shape == at.shape
        places = [np.unravel_index(i, at.shape) for i in rng.permutation(at.size)[:cells]]
        for place in places:
            kept, results = at[place], []
            for step in (1e-5, -1e-5):
                at[place] = kept + step
                full = [full_box(builder.spec(x).shape) for x in op.inputs]
                outs = [full_box(builder.spec(x).shape) for x in op.outputs]
                results.append(float((run_pieces(op, arrays, full, outs)[0] * seed).sum()))
            at[place] = kept
            differences.append(found[place] - (results[0] - results[1]) / 2e-5)
        errors[name] = float(np.abs(differences).max() / max(np.abs(found).max(), 1e-3))
    return errors


def run_whole(builder: GraphBuilder, values: dict[str, Array]) -> dict[str, Array]:
    """Every op of a graph of one micro-batch on one device."""
    values = dict(values)
    for op in builder.ops:
        boxes = [full_box(builder.spec(name).shape) for name in (*op.inputs, *op.outputs)]
        arrays = [values[name] for name in (*op.inputs, *op.updates)]
        results = run_pieces(op, arrays, boxes[: len(op.inputs)], boxes[len(op.inputs) :])
        values.update(zip((*op.outputs, *op.updates), results, strict=True))
    return values
