"""Trainer exports: plans that are searched for within a trainer's limits are said by its file whole.

A case is a small decoder on 2 or 4 GPUs with a batch, and a trainer: a configuration of its space is drawn and pinned,
the layouts are searched, the plan is written, stripped of comments, and read back from the text alone. What is read
back must be the same configuration, model and closed-form price; the certificate of the plan must say whose space it
is of, and be replayed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from experiments.planning.prices import simulated_step
from strategy.base.budget import Budget
from strategy.closed_form.calibration import shipped
from strategy.cost.cost import CostModel
from strategy.exports.of_plan import said_of_plan
from strategy.exports.trainer_file import trainer_file
from strategy.hardware.presets import PRESETS
from strategy.models.decoder import DecoderConfig
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.plan.replayed_bound import replayed_bound
from strategy.search.search import search
from strategy.space.candidates import candidates_of
from strategy.space.request import Pins, Request
from strategy.space.trainer_space import TargetTrainer
from strategy.trainers.architecture import description
from strategy.trainers.known_models import known_models
from strategy.trainers.priced import machine_of_cluster, priced
from strategy.trainers.trained import TrainerName
from strategy.trainers.write import read_back
from tests.campaigns.outcome import Outcome
from tests.support.trainer_plans import EXPERTS

QUOTAS = {"tp": 0.2, "pp": 0.2, "dp": 0.2}
TIME_LIMIT_S = 60.0


def run(cases: int, seed: int, trainer: TargetTrainer = TargetTrainer.MEGATRON) -> Outcome:
    """Export `cases` plans to Megatron, or another trainer."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        exercised: list[str] = []
        outcome.add(f"plan {number}", check(number, trainer, exercised), exercised)
    return outcome


def drawn_request(number: int, trainer: TargetTrainer) -> Request:
    """A small model with a configuration of the trainer's space pinned."""
    rng = random.Random(number)
    layers, heads = rng.choice((2, 4)), rng.choice((2, 4))
    models = (
        GptConfig(layers, 16 * heads, heads, 32, 96),
        DecoderConfig(layers, 16 * heads, heads, 2, 16, 64, 32, 96),
        replace(EXPERTS, layers=layers, vocabulary=96),
    )
    of_trainer = {
        TargetTrainer.DEEPSPEED: models[:2],
        TargetTrainer.TORCHTITAN: (description(known_models()["torchtitan/llama3/debugmodel"], 32),),
    }
    model = rng.choice(of_trainer.get(trainer, models))
    gpus = rng.choice((2, 4))
    cluster = replace(PRESETS["dgx-h100"], name="dgx-h100:1", devices_per_node=gpus)
    training = Training(rng.choice((8, 16)), precision=Precision.BF16)
    free = Request(
        "drawn", model, training, CostModel(cluster, {}), cluster.largest_memory_bytes, Pins(trainer=trainer)
    )
    shapes = sorted({(c.tp, c.pp) for c in candidates_of(free)})
    tp, pp = rng.choice(shapes)
    config = rng.choice([c for c in candidates_of(free) if (c.tp, c.pp) == (tp, pp)])
    pins = Pins(
        dp=config.dp, tp=config.tp, cp=config.cp, ep=config.ep, pp=config.pp, micro_batch=config.micro_batch,
        num_micro_batches=config.num_micro_batches, schedule=config.schedule, virtual_stages=config.virtual_stages,
        recompute=config.recompute, zero_stage=config.zero_stage, trainer=trainer,
    )  # fmt: skip
    return replace(free, pins=pins)


def check(number: int, trainer: TargetTrainer, exercised: list[str]) -> Iterator[str]:
    """What is wrong with a plan's export."""
    asked = drawn_request(number, trainer)
    plan = search(asked, simulate=simulated_step, budget=Budget.of(TIME_LIMIT_S)).plan
    config = plan.config
    exercised += [name for name in ("dp", "tp", "pp", "ep") if getattr(config, name) > 1]
    yield from lost(plan, TrainerName(trainer))
    if plan.certificate is None or plan.certificate["pinned"].get("trainer") != trainer:
        yield "the certificate does not say whose space it is of"
    elif replayed_bound(plan) is None:
        yield "the bound is not replayed"


def lost(plan: Plan, trainer: TrainerName) -> Iterator[str]:
    """What a plan's file loses: something that it does not say, or another price when it is read back."""
    written = trainer_file(plan, trainer, "plan.out")
    yield from written.cannot_say
    if trainer is TrainerName.DEEPSPEED:
        back = read_back(written.files, trainer).trained
    else:
        (name, text), *_ = written.files.items()
        kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        back = read_back({name: "\n".join(kept)}, trainer).trained
    machine = machine_of_cluster(plan.cluster)
    said = said_of_plan(plan, trainer).trained
    # What the trainer decides itself is not the plan's to say.
    own = {name: getattr(back, name) for name in ("framework", "exposed", "gradients", "deterministic")}
    wanted, found = (priced(one, machine, shipped()) for one in (replace(said, **own), back))
    if (wanted.step_time_s, wanted.memory_bytes) != (found.step_time_s, found.memory_bytes):
        yield f"priced {found.step_time_s} s when read back, not {wanted.step_time_s} s"
