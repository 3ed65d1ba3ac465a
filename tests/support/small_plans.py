"""Plans of small GPTs, made by rules, by the solver and at random, and their training on threads of this process."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from executor.checkpoint import Checkpoint
from executor.data.text import Corpus
from executor.runtime.kernels.base import open_kernels
from executor.runtime.transport.base import lanes_of
from executor.runtime.transport.loopback import LoopbackHub
from executor.train import StepReport, Trainer, program_of
from simulator.simulate import simulate
from strategy.base.errors import InfeasibleError, SbpError
from strategy.cost.cost import CostModel
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey
from strategy.graph.signature import op_signatures
from strategy.hardware.cluster import Cluster, Device, Host, Link
from strategy.layout.config import Context, PlanConfig
from strategy.layout.convert import lay_out
from strategy.layout.layout import Layout
from strategy.layout.objective import Priced
from strategy.layout.schedule import Schedule
from strategy.lowering.lower import lower
from strategy.lowering.memory import memory_nbytes
from strategy.lowering.traffic import sent_bytes_per_step
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.feed import BLOCKS
from strategy.program.program import ActKind, Program
from strategy.sbp.placement import Space
from strategy.sbp.tensor import DType
from strategy.search import search as search_module
from strategy.search.candidate.candidate_solve import Solved, solve_candidate, solved_as
from strategy.search.candidate.simulated_plan import Simulate, SimulatedStep, simulated_plan
from strategy.space.candidate_space import space_of
from strategy.space.deduce import deduce
from strategy.space.request import Request
from strategy.space.space import SearchSpace
from tests.support.poison import Poison

Array = npt.NDArray[Any]
MODEL = GptConfig(layers=2, width=8, heads=2, sequence=4, vocabulary=16)
HOST = Host(2**41, 5e8, 2e8, 1e8, 4e-6)


def cluster(
    devices: int, *, backend: str = "numpy", per_node: int | None = None, overlaps: bool | None = None
) -> Cluster:
    """Slow devices, so that small tensors cost something; every kind of work matters."""
    device = Device("small", backend, 2**40, 1e9, 1e9, 1e-6)
    per_node = per_node or devices
    return Cluster(
        "small", devices // per_node, per_node, device, Link(2e8, 2e-6, overlaps), Link(5e7, 8e-6, overlaps), HOST
    )


def request(
    devices: int,
    training: Training,
    *,
    model: Model = MODEL,
    backend: str = "numpy",
    per_node: int | None = None,
    overlaps: bool | None = None,
    limit: int = 2**40,
) -> Request:
    """A search for a plan of a small model; all devices are on one node unless it is said how many are."""
    cost = CostModel(cluster(devices, backend=backend, per_node=per_node, overlaps=overlaps), {})
    return Request("small", model, training, cost, limit)


def no_simulation(program: Program) -> SimulatedStep:
    """Stands in where the simulated time does not matter."""
    return SimulatedStep(1.0, 0.5)


@contextmanager
def exchange_left_alone() -> Iterator[None]:
    """Searches choose no buckets of gradients, which is half of what a small one does; also a decorator of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "with_exchange", lambda request, plan, simulate, budget: plan)
        yield


def simulated(program: Program) -> SimulatedStep:
    """The simulated time of a step, as a search wants it."""
    return SimulatedStep(simulate(program).step_time_s, simulate(program, steps=1).makespan_lower_bound_s)


def config_of(
    training: Training,
    *,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    schedule: str = "1f1b",
    laps: int | None = None,
    context: str = "ring",
    **more: Any,
) -> PlanConfig:
    """The degrees, with the micro-batch that follows (rounded up where the batch does not divide)."""
    micro, order = -(-training.micro_batch // dp), Schedule(schedule)
    laps = laps or order.default_laps
    return PlanConfig(
        dp, tp, pp, micro, training.num_micro_batches, order, virtual_stages=laps, context=Context(context), **more
    )


def plan_by_rules(asked: Request, config: PlanConfig, rules: Sequence[str], simulate: Simulate = no_simulation) -> Plan:
    """The best plan under one rule per axis.

    Raises:
        InfeasibleError: the rules leave an op without signature.
    """
    solved = solve_candidate(asked, config, rules=rules)
    if solved is None:
        raise InfeasibleError("no layout fits")
    return _planned(asked, solved, simulate)


def random_plan(asked: Request, config: PlanConfig, rng: random.Random, simulate: Simulate = no_simulation) -> Plan:
    """Every op under some legal signature, every conversion by some legal steps, whatever they cost."""
    kinds = [kind for kind in ActKind if kind.is_communication]
    levels = ("intra", "inter") if asked.cost.cluster.nodes > 1 else ("intra",)
    keys = [CostKey(kind, level=level) for level in levels for kind in kinds]
    taste = {key: Coefficients(rng.random(), 0.0, rng.random()) for key in (*keys, CostKey(ActKind.SLICE))}
    moody = replace(asked, cost=CostModel(asked.cost.cluster, taste))
    space = space_of(moody, config, ())
    return _laid_out(asked, config, space, _random_layout(space, rng), simulate)


def deduced_plan(asked: Request, config: PlanConfig, rules: Sequence[str], simulate: Simulate = no_simulation) -> Plan:
    """Every op under the signature that follows from one rule per axis and what came before; solves nothing.

    Raises:
        InfeasibleError: the rules leave an op without signature.
    """
    space = space_of(asked, config, rules)
    signatures = deduce(space.graph, space.stages, space.converter, space.allows, owned=space.owned)
    return _laid_out(asked, config, space, lay_out(space.graph, space.stages, signatures, space.converter), simulate)


def _laid_out(asked: Request, config: PlanConfig, space: SearchSpace, layout: Layout, simulate: Simulate) -> Plan:
    """The plan of a layout chosen in some space, at the prices of the request."""
    solved = solved_as(config, Priced(space.graph, layout, space.pipeline, asked.cost), 0)
    return _planned(asked, solved, simulate)


_recent: deque[tuple[Plan, Program]] = deque(maxlen=8)


def _planned(asked: Request, solved: Solved, simulate: Simulate) -> Plan:
    """The plan, whose program is kept for a while."""
    made: list[Program] = []

    def seen(program: Program) -> SimulatedStep:
        made.append(program)
        return simulate(program)

    plan = simulated_plan(asked, solved, seen)
    if not made[0].alike:
        _recent.append((plan, made[0]))
    return plan


def lowered(plan: Plan) -> Program:
    """The program of a plan; that from which its claims were taken, where the plan was made here lately."""
    return next((program for known, program in _recent if known is plan), None) or program_of(plan)


def _random_layout(space: SearchSpace, rng: random.Random) -> Layout:
    """Signatures drawn until conversions lead to all of them."""
    graph, legal = space.graph, {}
    for op in graph.ops:
        options = op_signatures(graph, op, space.stages.placement(op.name).mesh, owned=space.owned)
        legal[op.name] = [option for option in options if space.allows(op, option)]
    while True:
        drawn = {name: rng.choice(options) for name, options in legal.items()}
        try:
            return lay_out(graph, space.stages, drawn, space.converter)
        except SbpError:
            continue


def reclaimed(plan: Plan) -> Plan:
    """The plan with the claims that follow from its layout, as far as an illegal one can be followed."""
    try:
        objective_s = plan.priced.objective_ns / 1e9
        program = lower(plan.graph, plan.layout, plan.pipeline, plan.cost, tokens_per_step=plan.tokens_per_step)
        claims = replace(
            plan.claims,
            objective_s=objective_s,
            lower_bound_s=0.0,
            gap=1.0,
            status="feasible",
            peak_memory_bytes=memory_nbytes(program),
            peak_host_memory_bytes=memory_nbytes(program, Space.HOST),
            sent_bytes_per_step=sent_bytes_per_step(program),
        )
    except Exception:  # noqa: BLE001 - an illegal layout may fail anywhere; then its old claims stand
        return plan
    return replace(plan, claims=claims)


def corpus(vocabulary: int, *, seed: int = 0) -> Corpus:
    """Random text of a small vocabulary."""
    text = np.random.default_rng(seed).integers(0, vocabulary, 1000).astype(np.uint8)
    return Corpus("random", text, text, f"random {vocabulary} {seed}")


@dataclass(frozen=True)
class Trained:
    """A training run on threads: the ranks' trainers, the reports, and the bytes that every rank sent."""

    trainers: tuple[Trainer, ...]
    reports: tuple[StepReport, ...]
    sent_bytes: tuple[int, ...]


def train(
    plan: Plan,
    text: Corpus,
    *,
    steps: int,
    record: bool = False,
    checkpoint: Checkpoint | None = None,
    program: Program | None = None,
    poison: Sequence[Poison] = (),
    after_step: Callable[[Trainer], None] = lambda trainer: None,
    batches_ahead: int = BLOCKS,
    bitwise: bool = False,
) -> Trained:
    """Run a plan with one thread per rank, from the start or from a checkpoint.

    `program` stands in for the plan's own; `poison` are called before every act, one per rank; `after_step` by every
    rank when it is through with a step.

    Raises:
        RankFault: the first failure of any rank.
    """
    program = lowered(plan) if program is None else program
    hub = LoopbackHub(plan.ranks, lanes_of(program))
    transports = [hub.transport(rank) for rank in range(plan.ranks)]
    trainers = [
        Trainer(
            plan,
            transport,
            open_kernels("numpy"),
            text,
            program=program,
            checkpoint=checkpoint,
            on_act=poison[rank] if poison else None,
            record=record or bool(poison),
            batches_ahead=batches_ahead,
            bitwise=bitwise,
        )
        for rank, transport in enumerate(transports)
    ]
    for poisoned, trainer in zip(poison, trainers, strict=False):
        poisoned.trainer = trainer
    reports: dict[int, list[StepReport]] = {}

    def drive(rank: int) -> None:
        try:
            found = []
            for _ in range(steps):
                found.append(trainers[rank].run())
                after_step(trainers[rank])
            transports[rank].barrier()
            transports[rank].close()
            reports[rank] = [report for report in found if report is not None]
        except BaseException as failure:  # noqa: BLE001 - whatever ends one rank ends all
            hub.poison(failure)

    threads = [threading.Thread(target=drive, args=(rank,)) for rank in range(plan.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if hub.failure is not None:
        raise hub.failure
    told = next((found for _, found in sorted(reports.items()) if found), [])
    return Trained(tuple(trainers), tuple(told), tuple(sum(t.bytes_sent.values()) for t in transports))


def in_float64(training: Training) -> Training:
    """The same training in float64."""
    return replace(training, dtype=DType.FLOAT64)
