"""The order of a stage, drawn: f and b are the passes of a layer, t takes what the exchange of its gradients gave, and
g gathers its parameters."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from executor.train import program_of
from strategy.graph.graph import Phase
from strategy.layout.arrangement import Action
from strategy.layout.parameter_gathers import gathers
from strategy.lowering.stage_order import stage_order
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.protocol import admit
from strategy.sbp.tensor import Rate
from tests.support.long_parameters import long_but
from tests.support.random_plans import random_plan_case
from tests.support.small_plans import config_of, deduced_plan, request

MODEL = GptConfig(layers=4, width=8, heads=2, sequence=4, vocabulary=16)


def plan_of(pp: int, schedule: str, backend: str = "cupy", zero_stage: int = 2) -> Plan:
    """Two micro-batches, whose gradients are exchanged in each."""
    training = Training(global_batch=8, num_micro_batches=2)
    config = config_of(training, dp=2, pp=pp, schedule=schedule, zero_stage=zero_stage, zero_min_size=8)
    asked = request(2 * pp, training, model=MODEL, backend=backend, per_node=1)
    return deduced_plan(asked, config, ("data", "tensor"))


def drawn(plan: Plan) -> list[str]:
    """The chunks of every stage, layer by layer."""
    arrangement, count = plan.priced.arrangement, len(plan.layout.stages.placements)
    gathering, found = gathers(plan.graph, arrangement), []
    for lists, order in stage_order(plan.graph, arrangement, plan.pipeline, count):
        acts = ((index, arrangement.actions[index]) for number in order for index in lists[number])
        said = [letter(plan, action, gathers=index in gathering) for index, action in acts]
        found.append(" ".join(in_turns(filter(None, said))))
    return found


def in_turns(words: Iterable[str]) -> list[str]:
    """Without repetitions; of a layer that is gathered while another runs, each once."""
    found: list[str] = []
    for word in words:
        gathers = any(other.startswith("g") for other in found[-2:])
        if word not in (found[-2:] if gathers else found[-1:]):
            found.append(word)
    return found


def letter(plan: Plan, action: Action, *, gathers: bool) -> str:
    if not action.op or action.phase is Phase.UPDATE or action.rate is Rate.STEP:
        return ""
    op = plan.graph.by_name[action.op]
    if op.layer is None:
        return ""
    sums = action.phase is not Phase.FORWARD and plan.graph.values[op.outputs[0]].rate is Rate.STEP
    return f"{'g' if gathers else 't' if sums else action.phase[0]}{op.layer}"


@pytest.mark.parametrize(
    ("pp", "schedule", "expected"),
    [
        (1, "1f1b", ["f0 f1 f2 f3 b3 b2 t3 b1 t2 b0 t1 f0 f1 f2 f3 t0 b3 b2 t3 b1 t2 b0 t1 t0"]),
        (2, "1f1b", ["f0 f1 f0 f1 b1 b0 t1 b1 t0 b0 t1 t0", "f2 f3 b3 b2 t3 f2 f3 t2 b3 b2 t3 t2"]),
        (2, "gpipe", ["f0 f1 f0 f1 b1 b0 t1 b1 t0 b0 t1 t0", "f2 f3 f2 f3 b3 b2 t3 b3 t2 b2 t3 t2"]),
    ],
)
def test_sums_come_a_layer_later(pp: int, schedule: str, expected: list[str]) -> None:
    """And behind a chunk in between that exchanges nothing."""
    plan = plan_of(pp, schedule)
    assert drawn(plan) == expected
    admit(program_of(plan))


@pytest.mark.parametrize(("stage", "chunks"), [(0, "f0 f2 b2 b0"), (1, "f1 f3 b3 f3 b3 b1")])
def test_in_chunks_of_one_layer_sums_come_right_before_what_is_exchanged_next(stage: int, chunks: str) -> None:
    """Of each layer once, in the second backward pass, with or without a forward pass between the two."""
    plan = plan_of(2, "interleaved")
    arrangement = plan.priced.arrangement
    lists, order = list(stage_order(plan.graph, arrangement, plan.pipeline, 2))[stage]
    acts = [arrangement.actions[index] for number in order for index in lists[number]]
    said = [letter(plan, act, gathers=False) for act in acts]
    assert " ".join(in_turns(word for word in said if word and word[0] != "t")) == chunks
    given = {t: act for act in arrangement.actions if act.kind.is_communication for t in act.writes}
    are_sums = [word.startswith("t") for word in said]
    takers = [(at, given[t]) for at, act in enumerate(acts) if are_sums[at] for t in act.reads if t in given]
    right_before = sum(acts[at + 1] is giver for at, giver in takers)
    assert len(takers) == 2 * right_before > 8
    admit(program_of(plan))


@pytest.mark.parametrize(
    ("pp", "schedule", "expected"),
    [
        (1, "1f1b", ["g0 g1 f0 g2 f1 g3 f2 f3 g3 g2 b3 b2 g1 t3 b1 g0 t2 b0 g0 t1 g1 f0 g2 f1 g3 f2 f3 g3 t0 g2 b3 b2 "
                     "g1 t3 b1 g0 t2 b0 t1 t0"]),
        (2, "gpipe", ["g0 g1 f0 f1 g0 g1 f0 f1 g1 b1 g0 b0 g1 t1 b1 g0 t0 b0 t1 t0",
                      "g2 g3 f2 g2 f3 g3 f2 f3 g3 g2 b3 b2 g3 t3 g2 b3 t2 b2 t3 t2"]),
    ],
)  # fmt: skip
def test_parameters_are_gathered_a_layer_earlier(pp: int, schedule: str, expected: list[str]) -> None:
    """Also across chunks of the same passes, here of two layers."""
    plan = plan_of(pp, schedule, zero_stage=3)
    assert drawn(plan) == expected
    admit(program_of(plan))


def test_the_parameters_of_one_layer_are_held_in_advance() -> None:
    """At most as many gathered ones as a layer reads wait at any time, and few more while a layer is read."""
    plan = plan_of(1, "1f1b", zero_stage=3)
    arrangement = plan.priced.arrangement
    ((lists, order),) = stage_order(plan.graph, arrangement, plan.pipeline, 1)
    acts = [arrangement.actions[index] for index in lists[order[0]] + lists[order[1]]]
    gathered = {acts_at: acts[acts_at].writes[0] for acts_at in range(len(acts)) if is_gather(acts[acts_at])}
    last = {tensor: max(at for at, act in enumerate(acts) if tensor in act.reads) for tensor in gathered.values()}
    held = [sum(at <= now <= last[tensor] for at, tensor in gathered.items()) for now in range(len(acts))]
    of_layer = sum("layers.1." in acts[at].name and acts[at].phase is Phase.FORWARD for at in gathered)
    assert of_layer > 1
    assert of_layer <= max(held) <= of_layer + 3


def is_gather(action: Action) -> bool:
    """Whether an act gathers a parameter."""
    return action.kind.is_communication and ".weight" in action.name


def test_what_is_exchanged_once_per_step_comes_as_soon_as_it_is_whole() -> None:
    """Each layer's gradients are exchanged behind its last sum, ahead of the sums of the layers that follow."""
    plan = plan_of(1, "1f1b", zero_stage=0)
    arrangement = plan.priced.arrangement
    ((lists, order),) = stage_order(plan.graph, arrangement, plan.pipeline, 1)
    acts = [arrangement.actions[index] for number in order for index in lists[number]]
    sums: dict[int, int] = {}
    exchanges: dict[int, int] = {}
    for at, act in enumerate(acts):
        if act.op and act.rate is Rate.MICRO_BATCH and act.phase is Phase.BACKWARD:
            for tensor in (*act.writes, *act.updates):
                sums[tensor] = at
        elif act.kind.is_communication and act.phase is Phase.UPDATE:
            exchanges[act.reads[0]] = at
    summed = {tensor: at for tensor, at in exchanges.items() if tensor in sums}
    assert len(summed) >= MODEL.layers
    assert all(at > sums[tensor] for tensor, at in summed.items())
    late = [tensor for tensor, at in summed.items() if any(acts[i].op for i in range(sums[tensor] + 1, at))]
    assert not late, "computation stands between a sum and its exchange"
    assert [arrangement.tensors[t].value for t in sorted(summed, key=summed.__getitem__)] == [
        arrangement.tensors[t].value for t in sorted(summed, key=sums.__getitem__)
    ]


@pytest.mark.parametrize("seed", long_but([0, 269, 938], 1))
def test_orders_of_random_plans_do_not_hang(seed: int) -> None:
    """Products in tiles, whose parts are taken together; a backward pass all of whose inputs come from the host.

    What a backward pass computes again for gradients of weights alone, which are in tiles and put off.
    """
    admit(random_plan_case(seed, pipeline=True, backend="cupy").program)


def test_where_nothing_overlaps_nothing_is_postponed() -> None:
    plan = plan_of(1, "1f1b", "numpy")
    ((lists, _),) = stage_order(plan.graph, plan.priced.arrangement, plan.pipeline, 1)
    assert lists == [sorted(found) for found in lists]
