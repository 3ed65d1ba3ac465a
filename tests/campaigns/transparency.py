"""A plan changes nothing: random plans of small models, trained on threads, against the graph on one device."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.data import Corpus
from executor.initialize import initial_piece
from executor.synthetic import BatchLoader
from executor.train import program_of
from strategy.config import Offload, Recompute
from strategy.errors import InfeasibleError
from strategy.graph import Role
from strategy.layout import home_of
from strategy.lowering.arrangement import arrange
from strategy.lowering.schedule import Schedule, schedule_problem
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.models.mlp import MlpConfig
from strategy.ops.learning_rate import Decay
from strategy.passes.training import REPORT, Training, training_graph
from strategy.passes.updates import Optimizer
from strategy.plan import Plan
from strategy.program import LoadTask, Register
from strategy.protocol import admit
from strategy.sbp import local_box, local_shape
from strategy.tensor import DType
from strategy.verify import verify
from tests.campaigns.outcome import Outcome
from tests.reference import Array, run_graph
from tests.routed import dense_bytes, moves_by_all_to_alls, routed_bytes
from tests.small_plans import Trained, config_of, corpus, plan_by_rules, random_plan, request, train

QUOTAS = {
    "data": 0.3,
    "tensor": 0.3,
    "context": 0.05,
    "pipeline": 0.15,
    "micro-batches": 0.3,
    "uneven": 0.1,
    "random layout": 0.3,
    "rules": 0.2,
    "free": 0.02,
    "float32": 0.1,
    "mlp": 0.1,
    "frozen": 0.1,
    "selective recompute": 0.1,
    "full recompute": 0.1,
    "recompute by name": 0.1,
    "offload of activations": 0.05,
    "offload of optimizer": 0.05,
    "offload of all": 0.05,
    **{str(optimizer): 0.08 for optimizer in Optimizer},
    **{f"zero {stage}": 0.06 for stage in (1, 2, 3)},
    "owner": 0.05,
    **{str(schedule): 0.03 for schedule in Schedule},
}
STEPS = 3
SHARED = 8
"""Elements from which on ZeRO shares a tensor out here: the models are small."""
RULES = (("data", "tensor"), ("mixed", "tensor"), ("samples split", "mixed"), ("data", "samples shared"))
FREE = ("samples split", "samples shared")


@dataclass(frozen=True)
class PlanCase:
    """A plan, and how it was made."""

    plan: Plan
    made: str


def run(cases: int, seed: int) -> Outcome:
    """Check `cases` random plans."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        case = random_plan_case(number)
        outcome.add(f"plan {number}", check(case.plan), exercised(case))
    return outcome


def random_plan_case(seed: int, *, pipeline: bool = False, backend: str = "numpy") -> PlanCase:
    """A plan of 1 to 6 ranks: half of them laid out at random, the others by rules or by the solver.

    Args:
        seed: the same seed gives the same plan.
        pipeline: whether it must have several stages.
        backend: of the cluster; with "cupy", collectives run beside computation.
    """
    rng = random.Random(seed)
    possible = [d for d in _degrees(6) if d != (1, 1, 1) or rng.random() < 0.1]
    dp, tp, pp = rng.choice([d for d in possible if d[2] > 1 or not pipeline])
    schedule = random.Random(f"schedule {seed}").choice(list(Schedule))
    model = (_random_mlp if rng.random() < 0.25 else _random_gpt)(rng, pp * schedule.default_laps)
    micro_batches = rng.choice((1, 1, 2, 3, 4)) if pp == 1 else rng.choice((1, 2, 3, 4))
    if schedule_problem(schedule, pp, schedule.default_laps, micro_batches):
        micro_batches = pp
    training = Training(
        global_batch=micro_batches * (dp * rng.choice((1, 2)) if rng.random() < 0.7 else rng.randint(1, 5)),
        num_micro_batches=micro_batches,
        lr=rng.choice((1e-3, 1e-2)),
        max_norm=rng.choice((0.05, 1.0, 100.0)),
        dtype=DType.FLOAT32 if rng.random() < 0.2 else DType.FLOAT64,
        seed=seed,
        **_random_rule(rng, model),
    )
    more = _random_context(random.Random(f"context {seed}"), model, dp)
    dp = 1 if more else dp
    more |= {**_random_zero(seed, dp), **_random_memory(random.Random(seed), model)}
    config = config_of(training, dp=dp, tp=tp, pp=pp, schedule=schedule, **more)
    asked = request(math.prod(config.mesh) * pp, training, model=model, backend=backend)
    draw = rng.random()
    if draw < 0.5:
        rules = config.axes if config.cp > 1 else rng.choice(RULES) if draw < 0.42 else FREE
        try:
            return PlanCase(plan_by_rules(asked, config, rules), "free" if rules is FREE else "rules")
        except InfeasibleError:  # three heads on two ranks, one sample on two: only a random layout is legal
            pass
    return PlanCase(random_plan(asked, config, rng), "random layout")


def _random_zero(seed: int, dp: int) -> dict[str, Any]:
    rng = random.Random(f"zero {seed}")
    stage = rng.choice((0, 1, 2, 3)) if dp > 1 else 0
    return {"zero_stage": stage, "zero_owner": stage > 0 and rng.random() < 0.3, "zero_min_size": SHARED}


def _random_context(rng: random.Random, model: Model, ranks: int) -> dict[str, Any]:
    """Now and then, the ranks of the data axis have positions of their own instead of samples."""
    if not isinstance(model, GptConfig) or not 1 < ranks <= model.sequence or rng.random() < 0.65:
        return {}
    return {"cp": ranks, "context": rng.choice(("ring", "all_to_all"))}


def _random_gpt(rng: random.Random, runs: int) -> GptConfig:
    heads = rng.choice((1, 2, 3, 4))
    return GptConfig(
        layers=max(2, runs),
        width=heads * rng.choice((4, 6, 8)),
        heads=heads,
        sequence=rng.randint(3, 6),
        vocabulary=rng.randint(12, 24),
    )


def _random_mlp(rng: random.Random, runs: int) -> MlpConfig:
    return MlpConfig(max(2, runs), rng.randint(4, 9), rng.randint(6, 12), rng.randint(4, 7))


def _random_rule(rng: random.Random, model: Model) -> dict[str, Any]:
    """An optimiser, a schedule, and now and then parameters that stay as they are."""
    frozen = ("layers.0.*", "*.bias") if isinstance(model, MlpConfig) else ("token", "layers.0.*", "*.norm1.weight")
    return {
        "optimizer": rng.choice(tuple(Optimizer)),
        "nesterov": rng.random() < 0.5,
        "decay": Decay.COSINE,
        "decay_steps": 5,
        "warm_up": rng.choice((0, 2)),
        "frozen": (rng.choice(frozen),) if rng.random() < 0.25 else (),
    }


def _random_memory(rng: random.Random, model: Model) -> dict[str, Any]:
    """What is computed again, and what is offloaded."""
    mlp = isinstance(model, MlpConfig)
    kinds = (Recompute.FULL,) if mlp else (Recompute.FULL, Recompute.SELECTIVE)
    values = ("*.bias_add",) if mlp else ("*.mlp.*", "*.attn.qkv.bias_add", "layers.1.*norm*", "*.gelu", "*residual*")
    offload = rng.choice((*[Offload.NONE] * 5, *Offload))
    patterns = ("*.gelu",) if mlp else ("*.gelu", "*.attn.*", "*norm*")
    recomputed = {
        "recompute": rng.choice(kinds) if rng.random() < 0.45 else Recompute.NONE,
        "recompute_values": (rng.choice(values),) if rng.random() < 0.25 else (),
    }
    waits = recomputed == {"recompute": Recompute.NONE, "recompute_values": ()}
    named = waits and offload in (Offload.ACTIVATIONS, Offload.ALL) and rng.random() < 0.6
    return {"offload": offload, "offload_values": (rng.choice(patterns),) if named else (), **recomputed}


def _degrees(most: int) -> list[tuple[int, int, int]]:
    sizes = range(1, most + 1)
    return [(dp, tp, pp) for dp in sizes for tp in sizes for pp in sizes if dp * tp * pp <= most and pp <= 3]


def exercised(case: PlanCase) -> Iterator[str]:
    """What a plan is good for."""
    plan = case.plan
    yield case.made
    yield from ["data"] * (plan.config.dp > 1)
    yield from ["tensor"] * (plan.config.tp > 1)
    yield from ["context"] * (plan.config.cp > 1)
    yield from ["pipeline", str(plan.config.schedule)] * (plan.config.pp > 1)
    yield from ["micro-batches"] * (plan.config.num_micro_batches > 1)
    yield str(plan.training.optimizer)
    yield from ["owner"] * plan.config.zero_owner
    yield from [f"zero {plan.config.zero_stage}"] * (plan.config.zero_stage > 0)
    yield from ["frozen"] * bool(plan.training.frozen)
    yield from [f"{plan.config.recompute} recompute"] * (plan.config.recompute is not Recompute.NONE)
    yield from [f"offload of {plan.config.offload}"] * (plan.config.offload is not Offload.NONE)
    yield from ["recompute by name"] * bool(plan.config.recompute_values)
    yield from ["mlp"] * isinstance(plan.model, MlpConfig)
    yield from ["float32"] * (plan.training.dtype is DType.FLOAT32)
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for register in program_of(plan).registers:
        shapes.setdefault(register.name, set()).add(register.shape)
    yield from ["uneven"] * any(len(found) > 1 for found in shapes.values())


def check(plan: Plan, *, steps: int = STEPS) -> Iterator[str]:
    """Everything in which the training of a plan differs from one device, or from what the plan says."""
    if plan.training.micro_batch % plan.config.dp == 0:
        yield from verify(plan)
    program = program_of(plan)
    admit(program)
    trained = train(plan, text_of(plan), steps=steps)
    sent = steps * np.array(dense_bytes(program))
    known = moves_by_all_to_alls(program)

    def count(values: Mapping[str, Array]) -> None:
        sent[...] += routed_bytes(program, values) if known else 0

    wanted, losses = on_one_device(plan, steps=steps, seen=count)
    yield from _values(plan, trained, wanted, losses)
    yield from _shapes(plan, program.registers)
    claimed = tuple(steps * nbytes for nbytes in plan.claims.sent_bytes_per_step)
    ragged = any(register.ragged is not None for register in program.registers)
    expected = tuple(sent.tolist()) if ragged else claimed
    if known and trained.sent_bytes != expected:
        yield f"bytes sent: {trained.sent_bytes}, expected {expected}, claimed {claimed}"
    for rank, trainer in enumerate(trained.trainers):
        claims, registers = plan.claims, trainer.worker.registers
        planned = claims.peak_memory_bytes[rank], claims.peak_host_memory_bytes[rank]
        held = registers.nbytes, registers.host_nbytes
        if planned != held:
            yield f"rank {rank} holds {held} bytes of registers, planned are {planned}"


def differences(plan: Plan, trained: Trained, *, steps: int) -> Iterator[str]:
    """In what losses and variables differ from those on one device."""
    wanted, losses = on_one_device(plan, steps=steps)
    yield from _values(plan, trained, wanted, losses)


def on_one_device(
    plan: Plan, *, steps: int, seen: Callable[[Mapping[str, Array]], None] = lambda values: None
) -> tuple[dict[str, Array], list[float]]:
    """Variables after some steps on one device, and the mean loss of every step; no pass of the plan is in it.

    `seen` is shown all values after each micro-batch.
    """
    graph, training = training_graph(plan.model, plan.training), plan.training
    variables = {
        value.name: initial_piece(value, tuple((0, size) for size in value.spec.shape), seed=training.seed)
        for value in graph.with_role(Role.VARIABLE)
    }
    losses = []
    for step in range(steps):
        values = run_graph(graph, batches(plan, step), variables, step=step, seen=seen)
        losses.append(float(values[REPORT][0] / values[REPORT][1]))
    return variables, losses


def batches(plan: Plan, step: int) -> list[dict[str, Array]]:
    """The inputs of one step, a mapping per micro-batch."""
    specs = {value.name: value.spec for value in plan.graph.with_role(Role.INPUT)}
    shapes, count = {name: spec.shape for name, spec in specs.items()}, plan.training.num_micro_batches
    load = BatchLoader(plan.model.batch, shapes, text_of(plan), seed=plan.training.seed, num_micro_batches=count)
    found = []
    for number in range(count):
        arrays = {name: np.empty(spec.shape, spec.dtype) for name, spec in specs.items()}
        boxes = tuple(tuple((0, size) for size in spec.shape) for spec in specs.values())
        load(LoadTask(tuple(specs), boxes), step * count + number, list(arrays.values()))
        found.append(arrays)
    return found


def text_of(plan: Plan) -> Corpus:
    """Random text of the model's vocabulary, where it reads any."""
    return corpus(getattr(plan.model, "vocabulary", 2))


def _values(plan: Plan, trained: Trained, wanted: dict[str, Array], losses: list[float]) -> Iterator[str]:
    """Losses of every step; in float64 also every piece of every variable on every rank."""
    exact = plan.training.dtype is DType.FLOAT64
    for report, loss in zip(trained.reports, losses, strict=True):
        if not abs(report.loss - loss) <= (1e-9 if exact else 1e-4) * abs(loss):
            yield f"loss of step {report.step}: {report.loss}, on one device {loss}"
    if not exact:
        return
    for trainer in trained.trainers:
        for name, index in _pieces(plan, trainer.rank):
            found, reference = trainer.worker.read(name), wanted[name][index]
            fits = found.shape == reference.shape
            error = float(np.max(np.abs(found - reference), initial=0.0)) if fits else math.inf
            if not error <= 1e-9 * max(1.0, float(np.max(np.abs(wanted[name])))):
                yield f"{name} on rank {trainer.rank}: off by {error}"


def _pieces(plan: Plan, rank: int) -> Iterator[tuple[str, tuple[slice, ...]]]:
    """(name, index of the piece) of each variable that a rank holds, by the signature that decides it."""
    graph, layout = plan.graph, plan.layout
    for value in graph.with_role(Role.VARIABLE):
        home = home_of(graph, layout.stages, layout.signatures, value.name)
        assert home is not None
        placement = layout.stages.placements[home.stage]
        if rank in placement.devices:
            box = local_box(value.spec.shape, home.layout, placement.mesh, placement.coords(rank))
            yield value.name, tuple(slice(begin, end) for begin, end in box)


def _shapes(plan: Plan, registers: tuple[Register, ...]) -> Iterator[str]:
    """Whether every register is as large as the layout of its tensor says."""
    held = {(t.name, t.stage): t for t in arrange(plan.graph, plan.layout, plan.pipeline).tensors}
    placements = plan.layout.stages.placements
    for register in registers:
        stage = next(i for i, placement in enumerate(placements) if register.rank in placement.devices)
        tensor, placement = held[register.name, stage], placements[stage]
        spec = plan.graph.values[tensor.value].spec
        wanted = local_shape(spec.shape, tensor.layout, placement.mesh, placement.coords(register.rank))
        if (register.shape, register.dtype) != (wanted, spec.dtype):
            found = f"{register.dtype}{register.shape}"
            yield f"{register.name} on rank {register.rank} is {found}, not {spec.dtype}{wanted}"
