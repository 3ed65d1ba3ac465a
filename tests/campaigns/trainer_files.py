"""Trainer files: Megatron's arguments are planned as they stand, and exported again as what they said.

A case is a line of arguments such as a user of Megatron-LM has, drawn by its seed without a look at what the search or
the writer know: a small model, degrees, laps, recomputing, optimiser. It is read; the search lays out just that
configuration; the plan is written as Megatron's arguments without --lossy, and these, stripped of comments, are read
from the text alone. They must say the same job: every field that both readings have, and the closed form's price. A
plan that the writer refuses is told with its reasons, and counts against the quota.

Learned positions are drawn in GPT's own sizes alone: of other models with such a table none is searched.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from experiments.planning.prices import simulated_step
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, InputError, OutOfTimeError
from strategy.closed_form.calibration import shipped
from strategy.cost.cost import CostModel
from strategy.exports.trainer_file import trainer_file
from strategy.hardware.cluster import Cluster
from strategy.hardware.presets import PRESETS
from strategy.search.search import search
from strategy.space.request import Request
from strategy.space.trainer_space import TargetTrainer
from strategy.trainers.architecture import description
from strategy.trainers.formats import arguments_of
from strategy.trainers.priced import machine_of_cluster, priced
from strategy.trainers.read import read_document
from strategy.trainers.trained import TrainedModel, TrainerName, training_of
from strategy.trainers.write import read_back
from tests.campaigns.outcome import Outcome
from tests.support.trainer_pins import trainer_pins

EXPORTED = "exported"
QUOTAS = {EXPORTED: 0.8, "tp": 0.2, "pp": 0.2, "dp": 0.2}
TIME_LIMIT_S = 120.0
OWN = ("gpus", "gpus_per_node", "framework", "exposed", "gradients", "deterministic", "micro_batches")
"""What the line of the trainer's launcher says, or what follows from other fields."""


def run(cases: int, seed: int) -> Outcome:
    """Plan and export `cases` lines of arguments."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        exercised: list[str] = []
        refused: list[str] = []
        outcome.add(f"line {number}", check(number, exercised, refused), exercised)
        for reason in refused:
            print(f"line {number}: not exported: {reason}", file=sys.stderr)
    return outcome


def drawn_line(number: int) -> tuple[str, int]:
    """Arguments, and on how many GPUs."""
    rng = random.Random(number)
    tp, pp, dp = rng.choice([(1, 1, 2), (2, 1, 1), (1, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 1), (1, 1, 4)])
    micro, laps = rng.choice((1, 2)), rng.choice((1, 2)) if pp > 1 else 1
    layers, heads = rng.choice((1, 2)) * pp * laps * (1 if pp * laps > 2 else 2), rng.choice((4, 8))
    words = {
        "num-layers": layers,
        "hidden-size": 16 * heads,
        "ffn-hidden-size": 4 * 16 * heads,
        "num-attention-heads": heads,
        "seq-length": 64,
        "max-position-embeddings": 64,
        "vocab-size": 128,
        "make-vocab-size-divisible-by": rng.choice((1, 64)),
        "micro-batch-size": micro,
        "global-batch-size": dp * micro * rng.choice((2, 4)) * pp,
        "tensor-model-parallel-size": tp,
        "pipeline-model-parallel-size": pp,
        "lr": "3e-4",
    }
    flags = {"bf16", "use-distributed-optimizer"} if dp > 1 and rng.random() < 0.5 else {"bf16"}
    if tp > 1:
        flags |= {"sequence-parallel"}
    if laps > 1:
        words["num-layers-per-virtual-pipeline-stage"] = layers // (pp * laps)
    if rng.random() < 0.5:
        flags |= {"swiglu", "disable-bias-linear", "untie-embeddings-and-output-weights"}
        words |= {"normalization": "RMSNorm", "position-embedding-type": "rope"}
        words["ffn-hidden-size"] = rng.choice((2, 3)) * 16 * heads
        if rng.random() < 0.5:
            flags |= {"group-query-attention"}
            words["num-query-groups"] = heads // 2
    again = rng.choice(("", "selective", "full"))
    if again:
        words["recompute-granularity"] = again
    if again == "full":
        words |= {"recompute-method": "uniform", "recompute-num-layers": 1}
    said = [f"--{name} {value}" for name, value in words.items()] + [f"--{flag}" for flag in sorted(flags)]
    rng.shuffle(said)
    return "pretrain_gpt.py " + " ".join(said), dp * tp * pp


def check(number: int, exercised: list[str], refused: list[str]) -> Iterator[str]:
    """What is wrong with a line's plan, or its export; `refused` takes what was not exported, and why."""
    line, gpus = drawn_line(number)
    found = read_document(arguments_of(line, "run.sh"), Path("run.sh"), trainer=TrainerName.MEGATRON)
    read = found.trained
    if found.not_understood:
        yield f"not understood: {', '.join(found.not_understood)}"
    exercised += [name for name in ("tp", "pp") if getattr(read, name) > 1]
    exercised += ["dp"] * (gpus > read.tp * read.pp)
    cluster = replace(PRESETS["dgx-h100"], name="dgx-h100:1", devices_per_node=gpus)
    model = description(read.model, read.sequence)
    pins = replace(trainer_pins(read, gpus), trainer=TargetTrainer.MEGATRON)
    cost = CostModel(cluster, {})
    asked = Request("a line", model, training_of(read, gpus), cost, cluster.largest_memory_bytes, pins)
    try:
        plan = search(asked, simulate=simulated_step, budget=Budget.of(TIME_LIMIT_S)).plan
    except (InfeasibleError, OutOfTimeError) as error:
        refused.append(f"no plan: {error}")
        return
    written = trainer_file(plan, TrainerName.MEGATRON, "again.sh")
    if written.cannot_say:
        refused += written.cannot_say
        return
    exercised.append(EXPORTED)
    ((name, text),) = written.files.items()
    bare = "\n".join(one for one in text.splitlines() if not one.lstrip().startswith("#"))
    yield from otherwise(read, read_back({name: bare}, TrainerName.MEGATRON).trained, cluster)


def otherwise(read: TrainedModel, back: TrainedModel, cluster: Cluster) -> Iterator[str]:
    """What a job that was exported says otherwise than the line that it came from."""
    for field in fields(TrainedModel):
        wanted, found = getattr(read, field.name), getattr(back, field.name)
        if field.name not in OWN and wanted != found:
            yield f"{field.name} is {found}, the line says {wanted}"
    machine = machine_of_cluster(cluster)
    own = {name: getattr(back, name) for name in OWN}
    try:
        first, second = (priced(one, machine, shipped()) for one in (replace(read, **own), back))
    except InputError as error:
        yield f"not priced: {error}"
        return
    if (first.step_time_s, first.memory_bytes) != (second.step_time_s, second.memory_bytes):
        yield f"priced {second.step_time_s} s, the line's own price is {first.step_time_s} s"
