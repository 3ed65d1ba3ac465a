"""Random plans: a small model and a plan of 1 to 6 ranks for it, with any of the memory techniques and schedules.

What has quotas takes turns (`turn`), so that a few hundred plans hold enough of everything.
Attention is what selective recompute drops, so there the model is a GPT.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from strategy.base.errors import InfeasibleError
from strategy.graph.ops.learning_rate import Decay
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.models.mlp import MlpConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan
from strategy.program.program import Program
from strategy.sbp.tensor import DType
from strategy.search.candidate.simulated_plan import SimulatedStep
from strategy.space.request import Request
from tests.support.dropped_model import DroppedConfig
from tests.support.small_plans import config_of, deduced_plan, no_simulation, plan_by_rules, random_plan, request

T = TypeVar("T")
RANKS = range(1, 7)
SHARED = 8
"""Elements from which on ZeRO shares a tensor out here: the models are small."""
RULES = (("data", "tensor"), ("mixed", "tensor"), ("samples split", "mixed"), ("data", "samples shared"))
FREE = ("samples split", "samples shared")
WAYS = ("random layout",) * 4 + ("deduced",) * 4 + ("rules",) * 2
FREE_EVERY = 16
SCHEDULES: tuple[Schedule | None, ...] = (*[None] * 5, *Schedule)
ZERO = (*[(0, False)] * 10, *[(stage, owner) for stage in (1, 2, 3) for owner in (False, False, True)])
"""Stage, and whether a tensor has one owner."""
GROUPS = (False, False, True)
"""Whether four ranks share out in groups of two."""
OFFLOADS = (*[Offload.NONE] * 6, Offload.ACTIVATIONS, Offload.OPTIMIZER, Offload.ALL)
RECOMPUTES = (*[Recompute.NONE] * 4, Recompute.FULL, Recompute.SELECTIVE, Recompute.MEMORY_BOUND)
FOR_LAYERS = (Recompute.SELECTIVE, Recompute.MEMORY_BOUND)
TILES = (*[1] * 7, 2, 3)
EXCHANGES = ((0, 1), (0, 1), (1, 1), (256, 1), (256, 2), (1 << 30, 1), (1 << 30, 3))
"""Bytes of a bucket of gradients, and streams."""


@dataclass(frozen=True)
class PlanCase:
    """A plan, how it was laid out, and the program that it was lowered to."""

    plan: Plan
    made: str
    program: Program


def turn(number: int, what: str, options: Sequence[T]) -> T:
    """The option of case `number`: each comes once in as many cases as there are options, in an order of its own."""
    lap, place = divmod(number, len(options))
    return random.Random(f"{what} {lap}").sample(options, len(options))[place]


def random_plan_case(
    seed: int,
    *,
    pipeline: bool = False,
    backend: str = "numpy",
    ranks: Collection[int] = RANKS,
    precision: Precision = Precision.FULL,
    dropout: bool = False,
) -> PlanCase:
    """A plan of a model: laid out at random, as rules say, or as the solver finds best.

    Args:
        seed: the same seed gives the same plan.
        pipeline: whether it must have several stages.
        backend: of the cluster; with "cupy", collectives run beside computation, and a node has a tensor axis.
        ranks: how many it may have.
        precision: of what is computed; where it is not full, parameters are in float32.
        dropout: whether the model drops out, the ops of every other plan fused.
    """
    rng = random.Random(seed)
    schedule = turn(seed, "schedule", tuple(Schedule) if pipeline else SCHEDULES)
    stage, owner = turn(seed, "zero", ZERO if schedule is None or max(ranks) >= 4 else [(0, False)])
    dp, tp, pp = _random_degrees(rng, ranks, pipelined=schedule is not None, shared=stage > 0)
    grouped = stage > 0 and not owner and schedule is None and 4 in ranks and turn(seed, "groups", GROUPS)
    if grouped:
        dp, tp = 4, 1
    schedule = schedule or rng.choice(tuple(Schedule))
    recompute = turn(seed, "recompute", RECOMPUTES)
    if dropout and recompute is Recompute.SELECTIVE:
        recompute = Recompute.FULL  # there is no attention
    grow = _random_gpt if recompute in FOR_LAYERS else turn(seed, "model", (_random_gpt, _random_mlp))
    model = (_random_dropped if dropout else grow)(rng, pp * schedule.default_laps)
    micro_batches = rng.choice((1, 2, 2)) if pp == 1 else rng.choice((2, 2, 3, 4))
    if schedule_problem(schedule, pp, schedule.default_laps, micro_batches):
        micro_batches = pp
    training = Training(
        global_batch=micro_batches * (dp * rng.choice((1, 2)) if rng.random() < 0.7 else rng.randint(1, 5)),
        num_micro_batches=micro_batches,
        lr=rng.choice((1e-3, 1e-2)),
        max_norm=rng.choice((0.05, 1.0, 100.0)),
        dtype=DType.FLOAT32 if seed % 8 == 3 or precision.half is not None else DType.FLOAT64,
        precision=precision,
        fused=dropout and turn(seed, "fused", (False, True)),
        skip_nonfinite=rng.random() < 0.1,
        seed=seed,
        **_random_rule(seed, rng, model),
    )
    more = {"zero_stage": stage, "zero_owner": owner, "zero_min_size": SHARED, "zero_group": 2 * grouped}
    if not stage and 1 < dp <= getattr(model, "sequence", 0) and rng.random() < 0.7:
        more = {"cp": dp, "context": rng.choice(("ring", "all_to_all"))}
        dp = 1
    more |= _random_memory(
        seed, rng, model, recompute, frozen=bool(training.frozen), coded=precision.scaling is not None
    )
    more |= dict(zip(("bucket_bytes", "exchange_streams"), turn(seed, "exchange", EXCHANGES), strict=True))
    config = config_of(training, dp=dp, tp=tp, pp=pp, schedule=schedule, **more)
    per_node = tp if backend == "cupy" else None
    overlaps = turn(seed, "overlaps", (None, None, True)) if backend == "numpy" else None
    ranks_in_all = math.prod(config.mesh) * pp
    asked = request(ranks_in_all, training, model=model, backend=backend, per_node=per_node, overlaps=overlaps)
    return _laid_out(seed, rng, asked, config)


def _laid_out(seed: int, rng: random.Random, asked: Request, config: PlanConfig) -> PlanCase:
    """By whichever way it is the turn of; where three heads meet two ranks, say, only a random layout is legal."""
    way = turn(seed, "way", WAYS)
    rules = config.axes if config.cp > 1 or config.zero_group else rng.choice(RULES)
    ranks = config.pp * math.prod(config.mesh)
    if seed % FREE_EVERY == 0 and ranks <= 3:
        way, rules = "free", FREE
    elif way == "rules" and ranks > 2 and isinstance(asked.model, GptConfig):
        way = "deduced"  # solving larger ones takes a while, and is a campaign of its own
    programs: list[Program] = []

    def keep(program: Program) -> SimulatedStep:
        programs.append(program)
        return no_simulation(program)

    if way != "random layout":
        try:
            plan = (deduced_plan if way == "deduced" else plan_by_rules)(asked, config, rules, keep)
            return PlanCase(plan, way, programs[-1])
        except InfeasibleError:
            pass
    plan = random_plan(asked, config, rng, keep)
    return PlanCase(plan, "random layout", programs[-1])


def _random_degrees(
    rng: random.Random, ranks: Collection[int], *, pipelined: bool, shared: bool
) -> tuple[int, int, int]:
    """(dp, tp, pp), of few ranks more often than of many."""
    sizes = range(1, max(ranks) + 1)
    possible = [
        (dp, tp, pp)
        for dp in sizes
        for tp in sizes
        for pp in ((2, 3) if pipelined else (1,))
        if dp * tp * pp in ranks and (dp > 1 or not shared)
    ]
    weights = [(dp * tp * pp) ** -2.5 if dp * tp * pp > 1 else 0.05 for dp, tp, pp in possible]
    return rng.choices(possible, weights)[0]


def _random_gpt(rng: random.Random, runs: int) -> Model:
    heads = rng.choice((1, 2, 2, 3, 4))
    return GptConfig(
        layers=runs if runs > 1 else rng.choice((1, 1, 2)),
        width=heads * rng.choice((4, 6, 8)),
        heads=heads,
        sequence=rng.randint(3, 6),
        vocabulary=rng.randint(12, 24),
    )


def _random_mlp(rng: random.Random, runs: int) -> Model:
    return MlpConfig(max(2, runs), rng.randint(4, 9), rng.randint(6, 12), rng.randint(4, 7))


def _random_dropped(rng: random.Random, runs: int) -> Model:
    return DroppedConfig(max(2, runs), rng.randint(4, 9), rng.randint(6, 12), rng.randint(4, 7), rng.choice((0.1, 0.5)))


def _random_rule(seed: int, rng: random.Random, model: Model) -> dict[str, Any]:
    """An optimiser, a schedule, and now and then parameters that stay as they are."""
    frozen = ("layers.0.*", "*.bias") if isinstance(model, MlpConfig) else ("token", "layers.0.*", "*.norm1.weight")
    return {
        "optimizer": turn(seed, "optimizer", tuple(Optimizer)),
        "nesterov": rng.random() < 0.5,
        "decay": Decay.COSINE,
        "decay_steps": 5,
        "warm_up": rng.choice((0, 2)),
        "frozen": (rng.choice(frozen),) if rng.random() < 0.2 else (),
    }


def _random_memory(
    seed: int, rng: random.Random, model: Model, recompute: Recompute, *, frozen: bool, coded: bool
) -> dict[str, Any]:
    """What is computed again, what is offloaded, and what runs tile by tile.

    What is computed again, or leads to frozen parameters alone, does not wait for the backward pass: no pattern may
    ask for it. Nor does what `coded` products read: its codes do.
    """
    mlp = isinstance(model, MlpConfig)
    values = ("*.bias_add",) if mlp else ("*.mlp.*", "*.attn.qkv.bias_add", "layers.0.*norm*", "*.gelu", "*residual*")
    offload = turn(seed, "offload", OFFLOADS)
    recomputed = {"recompute": recompute, "recompute_values": (rng.choice(values),) * (rng.random() < 0.2)}
    waits = recomputed == {"recompute": Recompute.NONE, "recompute_values": ()}
    layers = [layer for layer in range(model.layers) if rng.random() < 0.5] if seed % 3 == 0 and not waits else []
    patterns = ("*.gelu",) if mlp else ("*.gelu", "*.attn.*", "*norm*")
    patterns = tuple("*.bias_add" if coded and one == "*.gelu" else one for one in patterns)
    patterns = ("*.bias_add",) if isinstance(model, DroppedConfig) else patterns  # of what is dropped the mask is drawn
    named = waits and not frozen and offload.of_activations and rng.random() < 0.5
    tiles = turn(seed, "tiles", TILES)
    tiled = ("layers.*.fc.matmul", "*.matmul") if mlp else ("*.fc1.matmul", "*.attn.*.matmul", "*.fc?.matmul")
    return {
        **recomputed,
        "kept_layers": tuple(layers),
        "offload": offload,
        "offload_values": (rng.choice(patterns),) if named else (),
        "tiles": tiles,
        "tiled": (rng.choice(tiled),) if tiles > 1 else ("*",),
    }
