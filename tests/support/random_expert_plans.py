"""Random plans with ragged rows: a small mixture of experts that drops nothing, on 1 to 6 ranks.

Experts are shared out among the data-parallel ranks, or every rank has all of them; random layouts cut rows as they
please. Memory techniques, schedules and optimisers are drawn as for other models (`tests.support.random_plans`).
"""

from __future__ import annotations

import random

from strategy.base.errors import InfeasibleError
from strategy.layout.config import Offload, Recompute
from strategy.layout.schedule import Schedule
from strategy.models.mixtral import MixtralConfig
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.program.program import Program
from strategy.sbp.tensor import DType
from strategy.search.candidate.simulated_plan import SimulatedStep
from tests.support.random_plans import PlanCase, turn
from tests.support.small_plans import config_of, deduced_plan, no_simulation, random_plan, request

DEGREES = ((1, 1, 1), (2, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (3, 1, 1), (2, 2, 1), (4, 1, 1), (2, 1, 2), (2, 1, 3))
"""Ranks that split the data, that split tensors, and stages."""
ZERO = (*[(0, False)] * 3, *[(stage, owner) for stage in (1, 2, 3) for owner in (False, True)])
RECOMPUTES = (*[Recompute.NONE] * 3, Recompute.FULL, Recompute.SELECTIVE)
OFFLOADS = (*[Offload.NONE] * 3, Offload.ACTIVATIONS, Offload.OPTIMIZER)
EXCHANGES = ((0, 1), (0, 1), (256, 2))
"""Bytes of a bucket of gradients, and streams."""


def random_expert_case(seed: int, *, backend: str = "numpy") -> PlanCase:
    """A plan of a mixture of experts.

    Args:
        seed: the same seed gives the same plan.
        backend: of the cluster.
    """
    rng = random.Random(f"experts {seed}")
    dp, tp, pp = turn(seed, "degrees of experts", DEGREES)
    stage, owner = turn(seed, "zero of experts", ZERO) if dp > 1 and pp == 1 else (0, False)
    micro_batches = rng.choice((1, 2, 2)) if pp == 1 else rng.choice((2, 3))
    shared = dp > 1 and not owner and rng.random() < 0.8
    heads = rng.choice((1, 2))
    model = MixtralConfig(
        layers=max(pp, rng.choice((1, 2))), width=4 * heads, heads=heads, key_heads=1, hidden=rng.choice((6, 8)),
        experts=dp * rng.choice((1, 2)) if shared else rng.randint(2, 5), choices=rng.choice((1, 2)),
        sequence=rng.randint(3, 5), vocabulary=rng.randint(12, 20),
    )  # fmt: skip
    training = Training(
        global_batch=micro_batches * dp * rng.choice((1, 2)),
        num_micro_batches=micro_batches,
        optimizer=turn(seed, "optimizer of experts", tuple(Optimizer)),
        lr=rng.choice((1e-3, 1e-2)),
        max_norm=rng.choice((0.05, 1.0)),
        dtype=DType.FLOAT64,
        seed=seed,
    )
    config = config_of(
        training,
        dp=dp,
        tp=tp,
        pp=pp,
        schedule=rng.choice((Schedule.ONE_F_ONE_B, Schedule.GPIPE)),
        ep=dp if shared else 1,
        zero_stage=stage,
        zero_owner=owner,
        zero_min_size=8,
        recompute=turn(seed, "recompute of experts", RECOMPUTES),
        offload=turn(seed, "offload of experts", OFFLOADS),
        **dict(zip(("bucket_bytes", "exchange_streams"), turn(seed, "exchange of experts", EXCHANGES), strict=True)),
    )
    asked = request(dp * tp * pp, training, model=model, backend=backend, per_node=tp if backend == "cupy" else None)
    programs: list[Program] = []

    def keep(program: Program) -> SimulatedStep:
        programs.append(program)
        return no_simulation(program)

    if shared or pp > 1 or turn(seed, "way of experts", (True, False)):  # experts are shared out by a rule
        try:
            plan = deduced_plan(asked, config, config.axes, keep)
            return PlanCase(plan, "deduced", programs[-1])
        except InfeasibleError:
            pass
    plan = random_plan(asked, config, rng, keep)
    return PlanCase(plan, "random layout", programs[-1])
