"""Folding: the signatures of a graph of 10^5 ops in alike layers are enumerated once per layer's op, in seconds.

One case is one candidate of a GPT of `LAYERS` layers. What is measured is the processor time of listing every op's
signatures, and the peak memory of all that leads there, graph and passes included.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Iterator

from strategy.graph.signature import op_signatures
from strategy.layout.config import PlanConfig
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.classes import classify
from strategy.space.space import SearchSpace
from tests.campaigns.outcome import Outcome
from tests.support.small_plans import config_of, request

LAYERS = 1370
FEW_LAYERS = 3
LEAST_OPS = 100_000
MOST_SECONDS = 2.0
MOST_BYTES = 2 << 30
TRAINING = Training(global_batch=8, num_micro_batches=2)
DEGREES = ({"dp": 2, "tp": 2}, {"tp": 4}, {"dp": 4}, {"dp": 2, "tp": 2, "zero_stage": 1}, {"cp": 2, "tp": 2})


def run(cases: int, seed: int, layers: int = LAYERS) -> Outcome:
    """Enumerate `cases` candidates."""
    outcome = Outcome({})
    for number in range(seed, seed + cases):
        degrees = random.Random(number).choice(DEGREES)
        config = config_of(TRAINING, **degrees)  # type: ignore[arg-type]
        exercised: list[str] = []
        outcome.add(f"candidate {degrees}", check(config, layers, exercised), exercised)
    return outcome


def space(config: PlanConfig, layers: int) -> SearchSpace:
    """The search space of a candidate of a GPT of so many layers."""
    model = GptConfig(layers=layers, width=64, heads=4, sequence=16, vocabulary=256)
    return space_of(request(4, TRAINING, model=model), config, free_rules(config))


def check(config: PlanConfig, layers: int, exercised: list[str]) -> Iterator[str]:
    """What is more than it may be."""
    few, many = space(config, FEW_LAYERS), space(config, layers)
    expected = len(classify(few).of_ops)
    start_s = time.process_time()
    for op in many.graph.ops:
        op_signatures(many.graph, op, many.mesh)
    taken_s = time.process_time() - start_s
    found = len(classify(many).of_ops)
    nbytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    exercised += [f"{len(many.graph.ops)} ops in {found} classes"]
    if layers == LAYERS and len(many.graph.ops) < LEAST_OPS:
        yield f"only {len(many.graph.ops)} ops"
    if found != expected:
        yield f"{found} classes of {layers} layers, {expected} of {FEW_LAYERS}"
    if taken_s > MOST_SECONDS:
        yield f"enumerating took {taken_s:.2f} s of processor time"
    if nbytes > MOST_BYTES:
        yield f"{nbytes} bytes were held"
