"""What one random plan has saved, another one loads: gathered again, parameters and moments are the same bits.

Both are plans of one small GPT, whose signatures are drawn among all legal ones: data, tensor, context and pipeline
degrees, stages of ZeRO with and without owners, states that wait on the host, uneven pieces. The second plan goes on
for a step, too.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from executor.checkpoint import Checkpoint, latest, load, save
from executor.train import checkpoint_meta
from strategy.base.errors import InfeasibleError, SbpError
from strategy.layout.config import Offload
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan
from strategy.sbp.tensor import DType
from tests.campaigns.outcome import Outcome, survived
from tests.support.random_plans import turn
from tests.support.small_plans import Trained, config_of, corpus, deduced_plan, random_plan, request, train

MODEL = GptConfig(layers=2, width=12, heads=4, sequence=6, vocabulary=22)
TEXT = corpus(MODEL.vocabulary)
BATCH = 8
DEGREES: tuple[dict[str, Any], ...] = (
    {},
    *({"dp": 2}, {"dp": 3}, {"dp": 4}, {"tp": 2}, {"tp": 3}, {"pp": 2}, {"cp": 2}, {"cp": 3}),
    *({"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}, {"tp": 2, "pp": 2}, {"dp": 3, "tp": 2}, {"cp": 2, "tp": 2}),
)
ZERO: tuple[dict[str, Any], ...] = (
    *({"zero_stage": stage, "zero_owner": owner, "zero_min_size": 8} for stage in (1, 2, 3) for owner in (False, True)),
    *({}, {}),
)
OFFLOADS = (Offload.NONE, Offload.NONE, Offload.OPTIMIZER)
QUOTAS = {
    **dict.fromkeys(("dp", "tp", "pp", "cp"), 0.15),
    **{f"zero {stage}": 0.1 for stage in (1, 2, 3)},
    **dict.fromkeys(("owner", "on the host", "deduced"), 0.1),
    **{str(optimizer): 0.05 for optimizer in Optimizer},
}


def run(cases: int, seed: int) -> Outcome:
    """Load `cases` checkpoints under other plans than they were saved by."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        exercised: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            outcome.add(f"pair {number}", survived(check(Path(folder), number, exercised)), [])
        outcome.coverage.update(set(exercised))
    return outcome


def check(folder: Path, number: int, exercised: list[str]) -> Iterator[str]:
    """What was lost on the way from one plan to another."""
    optimizer = turn(number, "optimizer", tuple(Optimizer))
    exercised.append(str(optimizer))
    training = Training(BATCH, 2, lr=0.01, optimizer=optimizer, dtype=DType.FLOAT32, seed=number)
    first, second = (drawn_plan(2 * number + place, training, exercised) for place in range(2))
    saved = kept(folder / "saved", first, train(first, TEXT, steps=1))
    wanted = gathered(saved)
    resumed = gathered(kept(folder / "resumed", second, train(second, TEXT, steps=0, checkpoint=saved)))
    if set(resumed) != set(wanted):
        yield f"{sorted(set(resumed) ^ set(wanted))} are held under one of {described(first)} and {described(second)}"
    for name in sorted(set(resumed) & set(wanted)):
        if resumed[name] != wanted[name]:
            yield f"{name} has other bits under {described(second)} than saved under {described(first)}"
    went_on = train(second, TEXT, steps=1, checkpoint=saved)
    if [report.step for report in went_on.reports] != [2]:
        yield f"{described(second)} did not go on with step 2"


def drawn_plan(number: int, training: Training, exercised: list[str]) -> Plan:
    """A plan of the model; random signatures three times in four, else those that follow from rules."""
    rng = random.Random(number)
    degrees = turn(number, "degrees", DEGREES)
    shares = turn(number, "zero", ZERO) if "dp" in degrees else {}
    offload = turn(number, "offload", OFFLOADS)
    config = config_of(training, **degrees, **shares, offload=offload)
    exercised += degrees
    if shares:
        exercised += [f"zero {shares['zero_stage']}", *["owner"] * shares["zero_owner"]]
    exercised += ["on the host"] * (offload is not Offload.NONE)
    asked = request(math.prod(degrees.values()), training, model=MODEL)
    if number % 4 == 0:
        try:
            rules = config.axes if "cp" in degrees else ("data", "tensor")
            plan = deduced_plan(asked, config, rules)
            exercised.append("deduced")
        except (InfeasibleError, SbpError):
            pass
        else:
            return plan
    return random_plan(asked, config, rng)


def described(plan: Plan) -> str:
    """What tells a plan from others, in a message."""
    config = plan.config
    shares = f", ZeRO {config.zero_stage}" if config.zero_stage else ""
    return f"dp {config.dp}, tp {config.tp}, cp {config.cp}, pp {config.pp}{shares}"


def kept(folder: Path, plan: Plan, trained: Trained) -> Checkpoint:
    """What all ranks own, written by one."""
    pieces = [piece for trainer in trained.trainers for piece in trainer.owned_pieces()]
    save(folder, trained.trainers[0].step, pieces, checkpoint_meta(plan, TEXT))
    found = latest(folder)
    assert found is not None
    return found


def gathered(checkpoint: Checkpoint) -> Mapping[str, bytes]:
    """Every tensor, put together."""
    return {name: load(checkpoint, name).tobytes() for name in checkpoint.manifest.tensors}
