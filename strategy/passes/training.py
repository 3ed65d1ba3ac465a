"""Training graph: a model's forward pass, its gradients, accumulation, global-norm clip and the optimiser's updates.

inputs -> loss, count               per micro-batch
gradients -> accumulate             per step, where there are several micro-batches
square_sum -> add_n -> clip_scale   one factor for all gradients: the mean over the count, and the clip
learning_rate, updates              parameters and their state in place (see `updates`)
report                              loss sum, count, gradient norm: what the host reads
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from strategy.builder import GraphBuilder
from strategy.errors import InputError, did_you_mean
from strategy.graph import Graph, Op, Phase, Role, Value
from strategy.models.base import Model
from strategy.nn.layers import set_training
from strategy.nn.tracer import Tensor, Tracer
from strategy.ops.learning_rate import Decay
from strategy.passes.autodiff import differentiate
from strategy.passes.updates import Optimizer, Rule, Trained, add_updates
from strategy.tensor import DType, Rate, TensorSpec

REPORT = "report"


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained: batch, optimiser, learning rate and precision.

    Attributes:
        global_batch: samples per step.
        num_micro_batches: into which a step is cut.
        lr: the peak of the learning rate.
        beta1, beta2, epsilon: of Adam, AdamW and LAMB; Adagrad has its epsilon alone.
        weight_decay: of matrices; vectors do not decay.
        max_norm: of the mean gradient, over all parameters together; infinity does not clip.
        dtype: of parameters and floating-point inputs.
        seed: of the first parameters and of the data.
        optimizer: the rule; with Muon, what is no matrix of a layer is trained by AdamW.
        momentum, nesterov: of SGD and Muon.
        decay: what the learning rate does after `warm_up` steps (see `rate_at`), with `decay_steps`, `final_lr` (its
            share of `lr`), `decay_power` and `decay_factor`.
        frozen: patterns of names of parameters that are not trained.
    """

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
    optimizer: Optimizer = Optimizer.ADAMW
    momentum: float = 0.9
    nesterov: bool = False
    decay: Decay = Decay.CONSTANT
    warm_up: int = 0
    decay_steps: int = 0
    final_lr: float = 0.0
    decay_power: float = 1.0
    decay_factor: float = 0.1
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        first = self.warm_up + 1 if self.decay in (Decay.COSINE, Decay.POLYNOMIAL) else int(self.decay is Decay.STEP)
        possible = {
            "lr": (0 <= self.lr < math.inf, "a finite figure >= 0"),
            "beta1": (0 <= self.beta1 < 1, "a figure in [0, 1)"),
            "beta2": (0 <= self.beta2 < 1, "a figure in [0, 1)"),
            "epsilon": (0 < self.epsilon < math.inf, "a finite figure above zero"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "a finite figure >= 0"),
            "max_norm": (self.max_norm > 0, "a figure above zero; infinity does not clip"),
            "dtype": (self.dtype.is_float, "a type of floating-point numbers"),
            "momentum": (0 <= self.momentum < 1, "a figure in [0, 1)"),
            "nesterov": (self.momentum > 0 or not self.nesterov, "False without momentum"),
            "warm_up": (self.warm_up >= 0, "a number of steps >= 0"),
            "decay_steps": (self.decay_steps >= first, f"at least {first} steps for {self.decay}"),
            "final_lr": (0 <= self.final_lr <= 1, "a share of lr in [0, 1]"),
            "decay_power": (0 < self.decay_power < math.inf, "a finite figure above zero"),
            "decay_factor": (0 < self.decay_factor <= 1, "a figure in (0, 1]"),
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

    @property
    def rule(self) -> Rule:
        """The part of it that the updates need."""
        return Rule(
            self.optimizer,
            {
                "beta1": self.beta1,
                "beta2": self.beta2,
                "epsilon": self.epsilon,
                "momentum": self.momentum,
                "nesterov": int(self.nesterov),
            },
            {
                "dtype": str(self.dtype),
                "decay": str(self.decay),
                "lr": self.lr,
                "warm_up": self.warm_up,
                "steps": self.decay_steps,
                "final": self.final_lr,
                "power": self.decay_power,
                "factor": self.decay_factor,
            },
            self.weight_decay,
            self.max_norm,
        )


def training_graph(model: Model, training: Training) -> Graph:
    """The graph of one training step of a model.

    Raises:
        InputError: a pattern of `training.frozen` matches no parameter, or nothing is left to train.
        GraphError: the model's graph does not compose.
    """
    builder, loss, count = _trace(model, training, trains=True)
    add_training(builder, loss, count, training)
    return builder.build(loss=loss)


def evaluation_graph(model: Model, training: Training) -> Graph:
    """The graph that reports loss and count of one global batch; all parameters are frozen, by their training names."""
    builder, loss, count = _trace(model, training, trains=False)
    sums = [_accumulated(builder, name, None, training, phase=Phase.FORWARD) for name in (loss, count)]
    builder.add(REPORT, "report", sums, phase=Phase.UPDATE)
    builder.ops = _in_order(builder.ops)
    return builder.build(loss=loss)


def add_training(builder: GraphBuilder, loss: str, count: str, training: Training) -> None:
    """Append backward pass, accumulation and updates to a forward pass with summed loss and count.

    Raises:
        InputError: a pattern of `training.frozen` matches no variable, or nothing is left to train.
    """
    given = len(builder.ops)
    gradients = differentiate(builder, loss, frozen=_frozen(builder, training))
    if not gradients:
        raise InputError("nothing is trained", where="training: frozen", got=training.frozen)
    layer_of = {name: op.layer for op in builder.ops for name in op.inputs}
    trained = [
        Trained(name, _total(builder, name, terms, layer_of[name], training), layer_of[name])
        for name, terms in gradients.items()
    ]
    loss_sum, total_count = (_accumulated(builder, n, None, training, phase=Phase.FORWARD) for n in (loss, count))
    norm = add_updates(builder, trained, total_count, training.rule)
    builder.add(REPORT, "report", (loss_sum, total_count, norm), phase=Phase.UPDATE)
    _drop_unused(builder, given)
    builder.ops = _in_order(builder.ops)


def _trace(model: Model, training: Training, *, trains: bool) -> tuple[GraphBuilder, str, str]:
    """The forward pass of one micro-batch, and the names of loss and count."""
    tracer = Tracer()
    module = model.module()
    set_training(module, trains)
    tracer.adopt(module, training.dtype)
    inputs = []
    for name, spec in model.inputs(training.micro_batch).items():
        dtype = training.dtype if spec.dtype.is_float else spec.dtype
        value = Value(name, TensorSpec(spec.shape, dtype), Rate.MICRO_BATCH, Role.INPUT)
        inputs.append(Tensor(tracer, tracer.graph.declare(value)))
    loss, count = module(*inputs)
    return tracer.graph, loss.name, count.name


def _frozen(builder: GraphBuilder, training: Training) -> set[str]:
    names = [value.name for value in builder.variables()]
    found: set[str] = set()
    for pattern in training.frozen:
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            hint = did_you_mean(pattern, names)
            raise InputError("a pattern matches no parameter", where="training: frozen", got=pattern, hint=hint)
        found.update(matches)
    return found


def _total(builder: GraphBuilder, name: str, terms: Sequence[str], layer: int | None, training: Training) -> str:
    """A parameter's gradient of the step.

    Each use is accumulated where it is, so that the terms of a parameter that two stages use meet once per step.
    """
    sums = [_accumulated(builder, term, layer, training) for term in terms]
    if len(sums) == 1:
        return sums[0]
    return builder.add(f"{name}:grad", "add_n", sums, phase=Phase.UPDATE, layer=layer)[0]


def _accumulated(
    builder: GraphBuilder, name: str, layer: int | None, training: Training, *, phase: Phase = Phase.BACKWARD
) -> str:
    """The step's sum of a micro-batch value; the value itself where there is one micro-batch."""
    if training.num_micro_batches == 1:
        return name
    return builder.add(f"{name}:sum", "accumulate", (name,), phase=phase, layer=layer)[0]


def _drop_unused(builder: GraphBuilder, given: int) -> None:
    """Take out backward ops that nobody reads: the gradients of frozen weights, and what leads to them alone.

    The first `given` ops are the model's own and stay.
    """
    used: set[str] = set()
    kept: list[Op] = []
    for index, op in reversed(list(enumerate(builder.ops))):
        if index < given or op.phase is not Phase.BACKWARD or op.updates or used.intersection(op.outputs):
            kept.append(op)
            used.update(op.inputs)
        else:
            for name in op.outputs:
                del builder.values[name]
    builder.ops = kept[::-1]


def _in_order(ops: Sequence[Op]) -> list[Op]:
    """Every accumulation right after the op that feeds it, so that its micro-batch term is soon free; updates last.

    What a model computes from its own accumulated values (running statistics, say) is part of the update: it happens
    once, after the last micro-batch.
    """
    written = {name for op in ops for name in op.outputs}
    waiting: dict[str, list[Op]] = {}
    for op in ops:
        if op.kind == "accumulate" and op.inputs[0] in written:
            waiting.setdefault(op.inputs[0], []).append(op)
    early: list[Op] = []
    late: list[Op] = []
    after_the_last = {op.outputs[0] for op in ops if op.kind == "accumulate"}
    for op in ops:
        if op.kind == "accumulate" and op.inputs[0] in written:
            continue
        if op.phase is Phase.UPDATE or after_the_last.intersection(op.inputs):
            after_the_last.update(op.outputs)
            late.append(replace(op, phase=Phase.UPDATE))
        else:
            early += [op, *(found for name in op.outputs for found in waiting.get(name, ()))]
    return early + late
