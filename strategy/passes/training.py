"""Training graph: a model's forward pass, its gradients, accumulation, global-norm clip and the optimiser's updates.

inputs -> loss, count               per micro-batch, in the training's precision (see `mixed_precision`)
gradients -> accumulate             per step, where there are several micro-batches
square_sum -> add_n -> clip_scale   one factor for all gradients: the mean over the count, and the clip
learning_rate, updates              parameters and their state in place (see `updates`), perhaps after a verdict
report                              loss sum, count, gradient norm: what the host reads
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase

from strategy.base.errors import InputError, did_you_mean
from strategy.base.limits import LARGEST
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Op, Phase, Role, Value, of_value
from strategy.graph.ops import op_definition
from strategy.graph.ops.learning_rate import Decay
from strategy.models.base import Model
from strategy.nn.layers import set_training
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.autodiff import differentiate
from strategy.passes.block_scaling import RECIPES, block_scaling
from strategy.passes.expert_demand import demand_of_experts
from strategy.passes.fusion import fuse
from strategy.passes.loss_scale import add_adjustment, scaled_count, scaled_loss
from strategy.passes.low_precision import Scaling, low_precision
from strategy.passes.mixed_precision import Precision, mixed_precision
from strategy.passes.parameter_groups import ParameterGroup
from strategy.passes.updates import Optimizer, Rule, Trained, add_updates
from strategy.sbp.tensor import DType, Rate, TensorSpec

REPORT = "report"
PARAMETERS = (DType.FLOAT32, DType.FLOAT64)
"""Dtypes of parameters: in a half, a small update rounds to none."""
Watch = Callable[[str, Graph], None]
"""What is told of a graph after every pass, with the pass's name."""


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
        dtype: of parameters, their gradients and state, and of floating-point inputs.
        precision: of what is computed between them (see `mixed_precision`); with fp16 the loss is scaled.
        amax_history: steps that delayed scales of 8 bits look back on (see `low_precision`).
        fused: whether pairs of ops that GPUs have one kernel for are one op each (see `fusion`).
        skip_nonfinite: whether a step whose gradients are not all finite changes nothing; with fp16 it never does.
        loss_scale, scale_period, scale_growth, scale_backoff: of fp16: the scale of the first step, the good steps in a
            row after which it is multiplied by the growth, and what a skipped step multiplies it by. Losses are sums,
            so the scale is smaller than that of a mean.
        seed: of the first parameters and of the data.
        optimizer: the rule; with Muon, what is no matrix of a layer is trained by AdamW.
        momentum, nesterov: of SGD and Muon.
        decay: what the learning rate does after `warm_up` steps (see `rate_at`), with `decay_steps`, `final_lr` (its
            share of `lr`), `decay_power` and `decay_factor`.
        frozen: patterns of names of parameters that are not trained.
        groups: parameters that are trained otherwise than the others.
        expert_imbalance: of experts that drop nothing: rows of the busiest rank's experts over those of an even demand,
            as prices assume it.
        expert_room: rows that a rank's experts have memory for over those of an even demand (see `expert_demand`); 0 is
            memory for the worst case.
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
    precision: Precision = Precision.FULL
    fused: bool = False
    skip_nonfinite: bool = False
    loss_scale: float = 4096.0
    scale_period: int = 2000
    scale_growth: float = 2.0
    scale_backoff: float = 0.5
    groups: tuple[ParameterGroup, ...] = ()
    amax_history: int = 16
    expert_imbalance: float = 1.0
    expert_room: float = 4.0

    def __post_init__(self) -> None:
        first = self.warm_up + 1 if self.decay in (Decay.COSINE, Decay.POLYNOMIAL) else int(self.decay is Decay.STEP)
        possible = {
            "lr": (0 <= self.lr < math.inf, "a finite figure >= 0"),
            "beta1": (0 <= self.beta1 < 1, "a figure in [0, 1)"),
            "beta2": (0 <= self.beta2 < 1, "a figure in [0, 1)"),
            "epsilon": (0 < self.epsilon < math.inf, "a finite figure above zero"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "a finite figure >= 0"),
            "max_norm": (self.max_norm > 0, "a figure above zero; infinity does not clip"),
            "dtype": (self.dtype in PARAMETERS, "float32 or float64; to compute in half precision, set precision"),
            "precision": (
                self.precision.half is None or self.dtype is DType.FLOAT32,
                "full with parameters of float64",
            ),
            "loss_scale": (1 <= self.loss_scale < math.inf, "a finite figure >= 1"),
            "scale_period": (self.scale_period >= 1, "a number of steps >= 1"),
            "scale_growth": (1 <= self.scale_growth < math.inf, "a finite figure >= 1"),
            "scale_backoff": (0 < self.scale_backoff < 1, "a figure in (0, 1)"),
            "momentum": (0 <= self.momentum < 1, "a figure in [0, 1)"),
            "nesterov": (self.momentum > 0 or not self.nesterov, "False without momentum"),
            "warm_up": (self.warm_up >= 0, "a number of steps >= 0"),
            "decay_steps": (self.decay_steps >= first, f"at least {first} steps for {self.decay}"),
            "final_lr": (0 <= self.final_lr <= 1, "a share of lr in [0, 1]"),
            "decay_power": (0 < self.decay_power < math.inf, "a finite figure above zero"),
            "decay_factor": (0 < self.decay_factor <= 1, "a figure in (0, 1]"),
            "amax_history": (self.amax_history >= 1, "a number of steps >= 1"),
            "expert_imbalance": (1 <= self.expert_imbalance < math.inf, "a finite factor >= 1"),
            "expert_room": (
                self.expert_room == 0 or self.expert_imbalance <= self.expert_room < math.inf,
                f"a finite factor, at least the imbalance ({self.expert_imbalance:g}), or 0 for the worst case",
            ),
        }
        for name, value in ((field.name, getattr(self, field.name)) for field in fields(self)):
            if isinstance(value, int) and abs(value) > LARGEST:
                raise InputError("not possible", where=f"training: {name}", got=value, expected="a number of 64 bits")
        rules = [group.optimizer for group in self.groups if group.optimizer and group.optimizer not in list(Optimizer)]
        if rules:
            hint = did_you_mean(rules[0], map(str, Optimizer))
            raise InputError("unknown optimizer", where="parameter group", got=rules[0], hint=hint)
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
    def of_few_micro_batches(self) -> Training:
        """One that has the same graph, whatever the number of micro-batches is, if it is more than one."""
        count = min(self.num_micro_batches, 2)
        return replace(self, global_batch=count * self.micro_batch, num_micro_batches=count)

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
            self.skips,
            self.groups,
        )

    @property
    def product_dtype(self) -> DType:
        """What matrix products compute in."""
        return self.precision.half or self.dtype

    @property
    def skips(self) -> bool:
        """Whether a step may be skipped."""
        return self.skip_nonfinite or self.scales

    @property
    def scales(self) -> bool:
        """Whether the loss is scaled, so that small gradients do not vanish in the narrow range of fp16."""
        return self.precision is Precision.FP16


def training_graph(model: Model, training: Training, watch: Watch | None = None) -> Graph:
    """The graph of one training step of a model; `watch` is told of the graph before and after every pass.

    Raises:
        InputError: a pattern of `training.frozen` matches no parameter, or nothing is left to train.
        GraphError: the model's graph does not compose.
    """
    builder, loss, count = _trace(model, training, trains=True)
    if watch is not None:
        watch("forward", builder.build(loss=loss))
    add_training(builder, loss, count, training, watch)
    graph = builder.build(loss=loss)
    if watch is not None:
        watch("training", graph)
    return graph


def evaluation_graph(model: Model, training: Training) -> Graph:
    """The graph that reports loss and count of one global batch; all parameters are frozen, by their training names."""
    builder, loss, count = _trace(model, training, trains=False)
    demand_of_experts(builder, training.expert_imbalance, training.expert_room)
    _fuse(builder, (loss, count), training)
    _mix(builder, (loss, count), training)
    producer = {name: op for op in builder.ops for name in op.outputs}
    sums = [_accumulated(builder, name, None, training, producer, phase=Phase.FORWARD) for name in (loss, count)]
    builder.add(REPORT, "report", sums, phase=Phase.UPDATE)
    builder.ops = _in_order(builder.ops)
    return builder.build(loss=loss)


def add_training(builder: GraphBuilder, loss: str, count: str, training: Training, watch: Watch | None = None) -> None:
    """Append backward pass, accumulation and updates to a forward pass with summed loss and count.

    The forward pass is brought to the training's precision first.

    Raises:
        InputError: a pattern of `training.frozen` matches no variable, or nothing is left to train.
    """
    demand_of_experts(builder, training.expert_imbalance, training.expert_room)
    frozen = _frozen(builder, training)
    _fuse(builder, (loss, count), training)
    if training.precision.half is not None:
        _mix(builder, (loss, count), training)
        if watch is not None:
            watch("mixed_precision", builder.build(loss=loss))
    scale = scaled_loss(builder, loss, training.loss_scale) if training.scales else None
    given = len(builder.ops)
    if scale is None:
        gradients = differentiate(builder, loss, frozen=frozen)
    else:
        gradients = differentiate(builder, scale.loss, frozen={*frozen, scale.scale})
    if not gradients:
        raise InputError("nothing is trained", where="training: frozen", got=training.frozen)
    if training.precision.scaling is not None:
        coded = Graph(builder.values, tuple(builder.ops))
        coded = _on_codes(coded, training, training.precision.scaling)
        builder.values, builder.ops = dict(coded.values), list(coded.ops)
        if watch is not None:
            watch("low_precision", builder.build(loss=loss))
    layer_of = {name: op.layer for op in builder.ops for name in op.inputs}
    producer = {name: op for op in builder.ops for name in op.outputs}
    sums: dict[str, str] = {}
    trained = [
        Trained(name, _total(builder, name, terms, layer_of[name], training, producer, sums), layer_of[name])
        for name, terms in gradients.items()
    ]
    loss_sum, total_count = (
        _accumulated(builder, n, None, training, producer, phase=Phase.FORWARD) for n in (loss, count)
    )
    divisor = total_count if scale is None else scaled_count(builder, total_count, scale)
    norm = add_updates(builder, trained, divisor, training.rule)
    if scale is not None:
        figures = {"period": training.scale_period, "growth": training.scale_growth, "backoff": training.scale_backoff}
        add_adjustment(builder, scale, figures)
    builder.add(REPORT, "report", (loss_sum, total_count, norm), phase=Phase.UPDATE)
    _drop_unused(builder, given)
    builder.ops = _in_order(builder.ops)


def _on_codes(graph: Graph, training: Training, scaling: Scaling) -> Graph:
    """Forward and backward pass with the codes of the training's precision."""
    if scaling in RECIPES:
        return block_scaling(graph, RECIPES[scaling])
    return low_precision(graph, scaling, training.amax_history)


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


def _mix(builder: GraphBuilder, whole: Sequence[str], training: Training) -> None:
    """Bring a forward pass to the training's precision; the values of `whole` stay in float32."""
    if training.precision.half is not None:
        mixed = mixed_precision(Graph(builder.values, tuple(builder.ops)), training.precision.half, whole)
        builder.values, builder.ops = dict(mixed.values), list(mixed.ops)


def _fuse(builder: GraphBuilder, kept: Sequence[str], training: Training) -> None:
    """Fuse pairs of ops of a forward pass, if the training says so."""
    if training.fused:
        found = fuse(Graph(builder.values, tuple(builder.ops)), kept)
        builder.values, builder.ops = dict(found.values), list(found.ops)


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


def _total(
    builder: GraphBuilder,
    name: str,
    terms: Sequence[str],
    layer: int | None,
    training: Training,
    producer: Mapping[str, Op],
    sums: dict[str, str],
) -> str:
    """A parameter's gradient of the step.

    Each use is accumulated where it is, so that the terms of a parameter that two stages use meet once per step. What
    is the gradient of several, as of parameters that are added to each other, has one of the `sums`.
    """
    for term in terms:
        if term not in sums:
            sums[term] = _accumulated(builder, term, layer, training, producer)
    if len(terms) == 1:
        return sums[terms[0]]
    found = [sums[term] for term in terms]
    return builder.add(builder.derived(name, "grad", layer), "add_n", found, phase=Phase.UPDATE, layer=layer)[0]


def _accumulated(
    builder: GraphBuilder,
    name: str,
    layer: int | None,
    training: Training,
    producer: Mapping[str, Op],
    *,
    phase: Phase = Phase.BACKWARD,
) -> str:
    """The step's sum of a micro-batch value; the value itself where there is one micro-batch."""
    if training.num_micro_batches == 1:
        return name
    line = of_value(builder.values[name], producer.get(name), "sum", layer)
    return builder.add(line, "accumulate", (name,), phase=phase, layer=layer)[0]


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
    written = {name: place for place, op in enumerate(ops) for name in op.outputs}
    waiting: dict[str, list[Op]] = {}
    for op in ops:
        if op_definition(op.kind).accumulates and written.keys() & op.inputs:
            waiting.setdefault(max(written.keys() & op.inputs, key=written.__getitem__), []).append(op)
    early: list[Op] = []
    late: list[Op] = []
    after_the_last = {op.outputs[0] for op in ops if op_definition(op.kind).accumulates}
    for op in ops:
        if op_definition(op.kind).accumulates and written.keys() & op.inputs:
            continue
        if op.phase is Phase.UPDATE or after_the_last.intersection(op.inputs):
            after_the_last.update(op.outputs)
            late.append(op if op.phase is Phase.UPDATE else replace(op, phase=Phase.UPDATE))
        else:
            early += [op, *(found for name in op.outputs for found in waiting.get(name, ()))]
    return early + late
