"""Ragged rows on devices that do what they are given in any order that events allow; see the campaign `gpu-order`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from executor.runtime import acts
from executor.runtime.acts import ActBinder
from executor.runtime.ragged import terms_may_lack_rows
from executor.runtime.transport.base import PendingTransfer
from strategy.base.errors import RankFault
from strategy.graph.ops import REGISTRY
from strategy.graph.ops.base import Call, Workspace
from strategy.graph.ops.on_rows import ragged_spec
from strategy.models.mixtral import MixtralConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.event_waits import ActWaits, StepWaits
from strategy.program.program import OpTask, Program
from strategy.sbp.ragged import piece_of
from strategy.sbp.tensor import DType
from tests.campaigns.gpu_order import STEPS, check
from tests.support.long_parameters import long_but
from tests.support.random_expert_plans import random_expert_case
from tests.support.random_plans import PlanCase
from tests.support.small_plans import config_of, deduced_plan, lowered, request
from tests.support.strict_device.device import StrictDevice, StrictKernels
from tests.support.strict_device.order import OrderFault
from tests.support.strict_device.running import PatientTransport, StrictRank, train_strictly
from tests.support.strict_device.world import World

SPLIT, OFFLOADED, STAGES, CUT = 4, 12, 8, 14
"""Seeds of plans: experts split over two ranks; rows offloaded; experts split in two stages each; rows cut anyhow."""


@pytest.mark.parametrize("seed", long_but([SPLIT, OFFLOADED, STAGES, CUT], 0))
def test_any_order_gives_one_devices_numbers_and_every_wait_is_needed(seed: int) -> None:
    case, found = random_expert_case(seed, backend="cupy"), list[StrictRank]()
    assert list(check(case, seed, found)) == []
    assert any(one.trainer.worker.issuer and one.trainer.worker.issuer.host for one in found)


@pytest.mark.long
def test_copies_of_rows_between_memories_are_the_devices() -> None:
    case = random_expert_case(OFFLOADED, backend="cupy")
    issuer = train_strictly(case.plan, case.program, 0, steps=1)[0].trainer.worker.issuer
    assert issuer is not None
    actors, registers = case.program.actors, case.program.registers
    copies = {
        index
        for stream in case.program.streams
        if stream.rank == 0 and stream.name in ("d2h", "h2d")
        for index in stream.sequence
        if any(registers[port.register].ragged is not None for port in actors[index].reads)
    }
    assert copies
    assert issuer.host.isdisjoint(copies)


def test_a_wait_of_the_host_for_rows_that_is_left_out_is_refused() -> None:
    """The first of a steady step on rank 0, left out in the run itself."""
    case = random_expert_case(SPLIT, backend="cupy")
    left_out: list[ActWaits] = []

    def change(rank: int, waits: tuple[StepWaits, ...]) -> tuple[StepWaits, ...]:
        if rank:
            return waits
        steady = list(waits[-1])
        position = next(i for i, act in enumerate(steady) if act.by_host)
        left_out.append(steady[position])
        steady[position] = replace(steady[position], by_host=steady[position].by_host[1:])
        return (*waits[:-1], tuple(steady))

    with pytest.raises(RankFault, match=r"OrderFault: the host .* without waiting for stream"):
        train_strictly(case.plan, case.program, 0, steps=STEPS + 1, change=change)
    assert len(left_out) == 1


def acts_on_rows(case: PlanCase, rank: int) -> set[int]:
    """Actors of a rank that read or write ragged rows."""
    ports = {
        index: (*actor.reads, *actor.writes) for index, actor in enumerate(case.program.actors) if actor.rank == rank
    }
    ragged = [register.ragged is not None for register in case.program.registers]
    return {index for index, some in ports.items() if any(ragged[port.register] for port in some)}


@pytest.mark.long
def test_hosts_wait_only_where_rows_leave_the_device() -> None:
    """Acts that compute with rows are launches like others, and most are replayed in graphs."""
    case = random_expert_case(SPLIT, backend="cupy")
    for one in train_strictly(case.plan, case.program, 0, steps=STEPS):
        issuer, rank = one.trainer.worker.issuer, one.trainer.rank
        assert issuer is not None
        found = acts_on_rows(case, rank)
        sent = {index for index in found if case.program.actors[index].rendezvous is not None}
        assert issuer.host & found == sent
        assert (len(sent), len(found)) == (6, 46)
        assert one.device.replayed


@pytest.mark.long
def test_on_one_rank_no_host_waits_for_rows() -> None:
    training = Training(global_batch=2, dtype=DType.FLOAT64, seed=1)
    model = MixtralConfig(2, 4, 1, 1, hidden=6, experts=3, choices=2, sequence=4, vocabulary=12)
    config = config_of(training)
    plan = deduced_plan(request(1, training, model=model, backend="cupy"), config, config.axes)
    case = PlanCase(plan, "deduced", lowered(plan))
    found: list[StrictRank] = []
    assert list(check(case, 0, found)) == []
    assert acts_on_rows(case, 0)
    assert all(one.trainer.worker.issuer and not one.trainer.worker.issuer.host for one in found)


@pytest.mark.long
def test_terms_that_lack_rows_stay_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts that no search makes. Kernels, which look for no row, would add up rows of different cells."""
    case = random_expert_case(CUT, backend="cupy")
    assert terms_may_lack_rows(case.program, case.plan.graph)
    assert not terms_may_lack_rows(random_expert_case(SPLIT, backend="cupy").program, case.plan.graph)
    monkeypatch.setattr(acts, "terms_may_lack_rows", lambda program, graph: False)
    with pytest.raises(RankFault, match=r"OrderFault: .*operands have different rows in an act that is not the host's"):
        train_strictly(case.plan, case.program, 0, steps=1)


def test_rows_in_an_act_that_is_not_the_hosts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an op of which no kernel reads the count."""
    case = random_expert_case(SPLIT, backend="cupy")
    by_kernels = ActBinder.is_host

    def of_no_op(binder: ActBinder, index: int) -> bool:
        return not isinstance(case.program.actors[index].task, OpTask) and by_kernels(binder, index)

    monkeypatch.setattr(ActBinder, "is_host", of_no_op)
    monkeypatch.setattr(StrictKernels, "counts_rows", lambda kernels, definition, call: False)
    with pytest.raises(RankFault, match=r"OrderFault: .*ragged rows in an act that is not the host's"):
        train_strictly(case.plan, case.program, 0, steps=1)


def test_a_count_that_changes_after_the_host_has_read_it_is_found() -> None:
    """Nothing in a plan does that: whoever writes rows is waited for."""
    world = World(1, seed=0)
    device = StrictDevice(world, 0)
    kernels, spec = StrictKernels(device), ragged_spec((2, 1, 3, 4), 1)
    whole = tuple((0, size) for size in spec.shape)
    x, y = (piece_of(kernels.xp, spec, whole, kernels.xp.zeros(spec.nbytes, "uint8")) for _ in range(2))
    kernels.wait()
    call = Call(kernels.xp, {}, (x,), (y,), (), (), (), Workspace(kernels.xp))
    with device.use(device.open("compute")):
        kernels.bind(REGISTRY["silu"], call).run()
        x.raw.inside[:1] = 1
        with pytest.raises(OrderFault, match=r"silu: the host has read \[0\] as counts of rows, and there are \[1\]"):
            kernels.wait()


def a_token_each() -> tuple[Plan, Program]:
    """Three ranks with a token and an expert each: now and then one has no row to send and none to receive."""
    model = MixtralConfig(1, 4, 1, 1, hidden=6, experts=3, choices=1, sequence=1, vocabulary=12)
    training = Training(global_batch=3, dtype=DType.FLOAT64, seed=1)
    config = config_of(training, dp=3, ep=3)
    plan = deduced_plan(request(3, training, model=model, backend="cupy", per_node=1), config, config.axes)
    return plan, lowered(plan)


def test_a_host_that_has_no_rows_to_move_takes_part_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told by its arrays that rows are the host's, and where it had none, the others waited for it for ever."""
    plan, program = a_token_each()
    train_strictly(plan, program, 0, steps=STEPS)
    right, away = PatientTransport.exchange, []

    def by_arrays(host: PatientTransport, group: Any, number: int, send: Any, receive: Any) -> PendingTransfer:
        if not any(isinstance(array, np.ndarray) for array in (*send, *receive)):
            away.append(host.rank)
            send = receive = group = ()
        return right(host, group, number, send, receive)

    monkeypatch.setattr(PatientTransport, "exchange", by_arrays)
    with pytest.raises(OrderFault, match=r"hosts of ranks \(0, 1, 2\) meet \[.*\] times for rendezvous"):
        train_strictly(plan, program, 0, steps=STEPS)
    assert away
