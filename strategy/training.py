"""Training graph: a model's forward pass, its gradients, accumulation, global-norm clip and AdamW.

ids, labels -> loss, count          per micro-batch
gradients -> accumulate             per step, where there are several micro-batches
square_sum -> add_n -> clip_scale   one factor for all gradients: the token mean and the clip
adamw                               updates parameter and moments in place
report                              loss sum, token count, gradient norm: what the host reads
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategy.autodiff import differentiate
from strategy.builder import GraphBuilder
from strategy.errors import InputError
from strategy.graph import Graph, Op, Phase, Role, Value
from strategy.models.gpt import Gpt, GptConfig
from strategy.module import Tensor, Tracer
from strategy.tensor import DType, Rate, TensorSpec

REPORT = "report"


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained: batch, optimiser and precision."""

    global_batch: int
    num_micro_batches: int = 1
    lr: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    max_norm: float = 1.0
    dtype: DType = DType.FLOAT32
    seed: int = 0

    def __post_init__(self) -> None:
        possible = {
            "lr": (0 <= self.lr < math.inf, "a finite figure >= 0"),
            "beta1": (0 <= self.beta1 < 1, "a figure in [0, 1)"),
            "beta2": (0 <= self.beta2 < 1, "a figure in [0, 1)"),
            "epsilon": (0 < self.epsilon < math.inf, "a finite figure above zero"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "a finite figure >= 0"),
            "max_norm": (self.max_norm > 0, "a figure above zero; infinity does not clip"),
            "dtype": (self.dtype.is_float, "a type of floating-point numbers"),
        }
        for name, (holds, expected) in possible.items():
            if not holds:
                raise InputError("not possible", where=f"training: {name}", got=getattr(self, name), expected=expected)
        if self.num_micro_batches < 1 or self.global_batch < 1 or self.global_batch % self.num_micro_batches:
            raise InputError(
                "the global batch does not divide into micro-batches",
                got=(self.global_batch, self.num_micro_batches),
                expected="a number of micro-batches that divides the batch",
            )

    @property
    def micro_batch(self) -> int:
        """Samples per micro-batch, over all ranks."""
        return self.global_batch // self.num_micro_batches


def training_graph(config: GptConfig, training: Training) -> Graph:
    """The graph of one training step of a GPT."""
    tracer = Tracer()
    model = Gpt(config)
    tracer.adopt(model, training.dtype)
    batch = TensorSpec((training.micro_batch, config.sequence), DType.INT32)
    ids, labels = (
        Tensor(tracer, tracer.graph.declare(Value(name, batch, Rate.MICRO_BATCH, Role.INPUT)))
        for name in ("ids", "labels")
    )
    loss, count = model(ids, labels)
    builder = tracer.graph
    gradients = differentiate(builder, loss.name)
    layer_of = {name: op.layer for op in builder.ops for name in op.inputs}
    totals = {name: _total(builder, name, terms, layer_of[name], training) for name, terms in gradients.items()}
    loss_sum, token_count = (_accumulated(builder, t.name, None, training) for t in (loss, count))
    factor, norm = _clip(builder, totals, layer_of, token_count, training)
    for name, total in totals.items():
        _update(builder, name, total, factor, layer_of[name], training)
    builder.add(REPORT, "report", (loss_sum, token_count, norm), phase=Phase.UPDATE)
    builder.ops = _accumulate_early(builder.ops)
    return builder.build(loss=loss.name)


def _total(builder: GraphBuilder, name: str, terms: tuple[str, ...], layer: int | None, training: Training) -> str:
    """A parameter's gradient of the step.

    Each use is accumulated where it is, so that the terms of a parameter that two stages use meet once per step.
    """
    sums = [_accumulated(builder, term, layer, training) for term in terms]
    if len(sums) == 1:
        return sums[0]
    return builder.add(f"{name}:grad", "add_n", sums, phase=Phase.UPDATE, layer=layer)[0]


def _accumulate_early(ops: list[Op]) -> list[Op]:
    """Every accumulation right after the op that feeds it, so that the micro-batch gradient is soon free."""
    waiting = {op.inputs[0]: op for op in ops if op.kind == "accumulate"}
    ordered = []
    for op in ops:
        if op.kind != "accumulate":
            ordered += [op, *(waiting[name] for name in op.outputs if name in waiting)]
    return ordered


def _accumulated(builder: GraphBuilder, name: str, layer: int | None, training: Training) -> str:
    """The step's sum of a micro-batch value; the value itself where there is one micro-batch."""
    if training.num_micro_batches == 1:
        return name
    return builder.add(f"{name}:sum", "accumulate", (name,), phase=Phase.BACKWARD, layer=layer)[0]


def _clip(
    builder: GraphBuilder, totals: dict[str, str], layer_of: dict[str, int | None], count: str, training: Training
) -> tuple[str, str]:
    """Squares are summed layer by layer first, so that a pipeline sends one number per layer between stages."""
    by_layer: dict[int | None, list[str]] = {}
    for name, total in totals.items():
        layer = layer_of[name]
        square = builder.add(f"{name}:square", "square_sum", (total,), phase=Phase.UPDATE, layer=layer)[0]
        by_layer.setdefault(layer, []).append(square)
    sums = []
    for layer, squares in by_layer.items():
        name = "outer:square" if layer is None else f"layers.{layer}:square"
        sums.append(builder.add(name, "add_n", squares, phase=Phase.UPDATE, layer=layer)[0])
    square = builder.add("square", "add_n", sums, phase=Phase.UPDATE)[0]
    attrs = {"max_norm": training.max_norm}
    factor, norm = builder.add("clip", "clip_scale", (square, count), labels=("norm",), attrs=attrs, phase=Phase.UPDATE)
    return factor, norm


def _update(builder: GraphBuilder, name: str, total: str, factor: str, layer: int | None, training: Training) -> None:
    spec = builder.spec(name)
    moments = [
        builder.declare(Value(f"{name}:{moment}", spec, Rate.STEP, Role.VARIABLE, "zeros")) for moment in ("m", "v")
    ]
    attrs = {
        "lr": training.lr,
        "beta1": training.beta1,
        "beta2": training.beta2,
        "epsilon": training.epsilon,
        "weight_decay": training.weight_decay if len(spec.shape) > 1 else 0.0,
    }
    updates = (name, *moments)
    builder.add(
        f"{name}:adamw", "adamw", (total, factor), updates=updates, attrs=attrs, phase=Phase.UPDATE, layer=layer
    )
