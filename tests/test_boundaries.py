"""What goes between pipeline stages: boundary tensors alone, each over the slow links once, however many ranks hold it.

Narayanan et al. 2021 (arXiv:2104.04473), section 4.1: of t tensor-parallel ranks that all hold a boundary tensor, each
sends a t-th to its counterpart on the next node, whose ranks gather the whole inside the node ("scatter/gather").
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from executor.runtime.transport.base import HostArray, PendingTransfer
from executor.runtime.transport.loopback import LoopbackTransport
from executor.train import program_of
from strategy.comm.sent_bytes import sent_nbytes
from strategy.cost.cost import CostModel
from strategy.hardware.cluster import Cluster
from strategy.models.llama import LlamaConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.program import ActKind, BoxingTask, TransferTask
from strategy.sbp.sbp import B
from strategy.sbp.tensor import DType, Rate
from strategy.space.deduce import Deduction
from strategy.space.request import Pins
from tests.campaigns.transparency import check
from tests.support.small_plans import cluster, config_of, corpus, plan_by_rules, request, train

MODEL = LlamaConfig(layers=2, width=32, heads=4, key_heads=4, hidden=32, sequence=16, vocabulary=64)
TRAINING = Training(global_batch=4, num_micro_batches=2, dtype=DType.FLOAT64)
TP, STEPS = 2, 2
BOUNDARY = TRAINING.micro_batch * MODEL.sequence * MODEL.width * 8
"""Bytes of what flows between layers, and of its gradient."""
SCALARS = {"norm.weight:square", "head.weight:square", "layers.1:square", "loss:sum", "loss.count:sum"}
"""What the last stage tells the first once per step, for the norm of all gradients and for the report; the first then
tells the last the clip and the learning rate."""
NODES = cluster(2 * TP, per_node=TP)
"""A stage to a node; links between nodes are four times as slow."""
INSIDE_SLOW = replace(NODES, intra=replace(NODES.inter, latency_s=1e-3), inter=NODES.intra)
FLOWS = ("residual?", "norm?.norm", "norm?.norm:sum0")


@cache
def plan_of(nodes: Cluster) -> Plan:
    """Two tensor-parallel stages; every rank has the whole of what flows between layers, both ways."""
    pins = dict.fromkeys([f"layers.*.{name}" for name in FLOWS], (B, B))
    asked = replace(request(2 * TP, TRAINING, model=MODEL), cost=CostModel(nodes, {}))
    asked = replace(asked, deduction=Deduction.LEAST_COST, pins=Pins(layouts=pins))
    return plan_by_rules(asked, config_of(TRAINING, tp=TP, pp=2), ("data", "tensor"))


def crossing(plan: Plan, rate: Rate) -> dict[str, list[ActKind]]:
    """Value that goes from stage to stage -> the kinds of the steps that it takes."""
    found = [c for c in plan.layout.conversions if c.source.stage != c.copy.stage]
    assert len({c.copy.value for c in found}) == len(found)
    return {c.copy.value: [s.kind for s in c.steps] for c in found if plan.graph.values[c.copy.value].rate is rate}


@pytest.mark.parametrize(
    ("nodes", "steps"),
    [(NODES, [ActKind.TRANSFER, ActKind.ALL_GATHER]), (INSIDE_SLOW, [ActKind.TRANSFER])],
    ids=["gathered where that is cheaper", "sent whole where it is not"],
)
def test_boundary_tensors_alone_go_from_stage_to_stage(nodes: Cluster, steps: list[ActKind]) -> None:
    """One activation forward and its gradient back per micro-batch; once per step a few scalars."""
    plan = plan_of(nodes)
    assert crossing(plan, Rate.MICRO_BATCH) == {"layers.0.residual2": steps, "layers.1.norm1.norm:sum0": steps}
    once = crossing(plan, Rate.STEP)
    assert once.keys() == SCALARS | {"clip", "learning_rate"}
    assert all(plan.graph.values[name].spec.shape == () for name in once)
    assert list(check(plan)) == []


@pytest.mark.parametrize(("nodes", "share"), [(NODES, TP), (INSIDE_SLOW, 1)], ids=["a share", "the whole"])
def test_every_message_between_stages_is_counted(nodes: Cluster, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank sends its counterpart the `share`-th part of the boundary, and nothing goes to the other one."""
    messages: Counter[tuple[int, int, int]] = Counter()
    honest = LoopbackTransport.send

    def counted(self: LoopbackTransport, target: int, number: int, array: HostArray) -> PendingTransfer:
        messages[self.rank, target, array.nbytes] += 1
        return honest(self, target, number, array)

    monkeypatch.setattr(LoopbackTransport, "send", counted)
    plan = plan_of(nodes)
    trained = train(plan, corpus(MODEL.vocabulary), steps=STEPS)
    assert trained.sent_bytes == tuple(STEPS * nbytes for nbytes in plan.claims.sent_bytes_per_step)
    wanted: Counter[tuple[int, int, int]] = Counter()
    for rank in range(TP):
        there, back = (rank, TP + rank), (TP + rank, rank)
        wanted[*there, BOUNDARY // share] += STEPS * TRAINING.num_micro_batches
        wanted[*back, BOUNDARY // share] += STEPS * TRAINING.num_micro_batches
        wanted[*there, 8] += STEPS * 2
        wanted[*back, 8] += STEPS * len(SCALARS)
    assert messages == wanted


def test_the_best_plan_sends_no_more() -> None:
    """Where nothing is pinned, the solver lays out both sides so that one crossing serves all who read the tensor."""
    asked = replace(request(2 * TP, TRAINING, model=MODEL), cost=CostModel(NODES, {}))
    program = program_of(plan_by_rules(asked, config_of(TRAINING, tp=TP, pp=2), ("data", "tensor")))
    sent = dict.fromkeys(range(2 * TP), 0)
    for actor in program.actors:
        if isinstance(actor.task, TransferTask) and actor.reads and actor.acts_per_step > 1:
            spec = program.registers[actor.reads[0].register].spec
            sent[actor.rank] += sent_nbytes(actor.kind, actor.task, actor.rank, spec)
    assert set(sent.values()) == {BOUNDARY // TP}


def test_pieces_meet_inside_the_node() -> None:
    """No collective crosses the boundary: what the slow links carry are the messages alone, a t-th from every rank."""
    program = program_of(plan_of(NODES))
    groups = {actor.task.group for actor in program.actors if isinstance(actor.task, BoxingTask)}
    assert groups == {(0, 1), (2, 3)}
    gathers = [a for a in program.actors if a.kind is ActKind.ALL_GATHER and a.acts_per_step > 1]
    arrivals = [a for a in program.actors if isinstance(a.task, TransferTask) and a.writes and a.acts_per_step > 1]
    read = {read.register for gather in gathers for read in gather.reads}
    assert {write.register for arrival in arrivals for write in arrival.writes} <= read
