"""Context parallelism: attention over split positions in three ways, each of which computes what one device computes.

gather   queries stay split, keys and values are gathered; their gradients are reduced and scattered
ulysses  positions are exchanged for heads before attention, and back after it
ring     keys and values go round the ranks, block by block (see `passes.ring_attention`)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import pytest

from executor.train import program_of
from simulator.simulate import simulate
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError
from strategy.cost.cost import CostModel
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Attrs, Graph, Phase, Role, Value
from strategy.graph.signature import Signature, op_signatures
from strategy.layout.arrangement import Pipeline, arrange
from strategy.layout.config import Recompute
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import Layout, assign_stages
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.models.bert import BertConfig
from strategy.models.gpt import GptConfig
from strategy.models.llama import LlamaConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.program import ActKind
from strategy.program.timeline import Timeline
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, P, Sbp, Split
from strategy.sbp.tensor import DType, Rate, Shape, TensorSpec
from strategy.search.search import search
from strategy.space.candidates import candidates_of
from strategy.space.request import Pins
from tests.campaigns.layouts import check
from tests.campaigns.mutation import mutants
from tests.campaigns.transparency import check as check_training
from tests.support.long_parameters import long_but
from tests.support.small_plans import (
    cluster,
    config_of,
    in_float64,
    no_simulation,
    plan_by_rules,
    request,
)
from tests.support.whole_graphs import Operand, WholeCase

BATCH, SEQUENCE, HEADS, WIDTH = 2, 7, 6, 4
SEQ = Split(1)
LSE_SEQ = Split(2)
Chosen = Mapping[str, tuple[tuple[Sbp, ...], tuple[Sbp, ...]]]
"""Op -> SBPs of inputs and outputs."""
ENDS: Chosen = {name: ((SEQ,), (SEQ,)) for name in ("q", "k", "v", "do", "y", "gq", "gk", "gv")}
GATHER: Chosen = {
    **ENDS,
    "attention": ((SEQ, B, B), (SEQ, LSE_SEQ)),
    "grad": ((SEQ, B, B, SEQ, LSE_SEQ, SEQ), (SEQ, P, P)),
}
HEAD = Split(2)
ULYSSES: Chosen = {
    **ENDS,
    "attention": ((HEAD, HEAD, HEAD), (HEAD, SEQ)),
    "grad": ((HEAD, HEAD, HEAD, HEAD, SEQ, HEAD), (HEAD, HEAD, HEAD)),
}


def graph_of(key_heads: int) -> tuple[Graph, dict[str, Operand]]:
    """Queries, keys and values of split positions, attention, and its gradient, of split positions again."""
    builder = GraphBuilder()
    q: Shape = (BATCH, SEQUENCE, HEADS, WIDTH)
    k: Shape = (BATCH, SEQUENCE, key_heads, WIDTH)
    operands = {}
    for name, shape in {"q": q, "k": k, "v": k, "do": q}.items():
        spec = TensorSpec(shape, DType.FLOAT64)
        operands[f"{name}0"] = Operand(spec, None, 0)
        builder.declare(Value(f"{name}0", spec, Rate.MICRO_BATCH, Role.INPUT))
        builder.add(name, "gelu", (f"{name}0",))
    attrs: Attrs = {"causal": 1, "group": HEADS // key_heads}
    written = builder.add("attention", "attention", ("q", "k", "v"), labels=("lse",), attrs=attrs)
    builder.add("y", "gelu", ("attention",))
    inputs = ("q", "k", "v", *written, "do")
    builder.add("grad", "attention_grad", inputs, labels=("dk", "dv"), attrs=attrs, phase=Phase.BACKWARD)
    for name, gradient in (("gq", "grad"), ("gk", "grad.dk"), ("gv", "grad.dv")):
        builder.add(name, "gelu", (gradient,), phase=Phase.BACKWARD)
    return builder.build(), operands


def laid_out(graph: Graph, chosen: Chosen, ranks: int) -> tuple[Layout, CostModel]:
    placements = (Placement(tuple(range(ranks)), (ranks,), ("context",)),)
    stages, cost = assign_stages(graph, placements), CostModel(cluster(ranks), {})
    signatures = {}
    for op in graph.ops:
        reads, writes = chosen[op.name]
        signatures[op.name] = Signature(tuple((s,) for s in reads), tuple((s,) for s in writes))
        assert signatures[op.name] in op_signatures(graph, op, (ranks,)), op.name
    return lay_out(graph, stages, signatures, Converter(cost, placements)), cost


def steps_of(layout: Layout) -> dict[str, list[ActKind]]:
    return {c.copy.value: [step.kind for step in c.steps] for c in layout.conversions if c.steps}


GATHERED = [ActKind.ALL_GATHER]
EXCHANGED = [ActKind.ALL_TO_ALL]
SCATTERED = [ActKind.REDUCE_SCATTER]
WAYS: Mapping[str, tuple[Chosen, dict[str, list[ActKind]]]] = {
    "gather": (GATHER, {"k": GATHERED, "v": GATHERED, "grad.dk": SCATTERED, "grad.dv": SCATTERED}),
    "ulysses": (
        ULYSSES,
        {
            **dict.fromkeys(("q", "k", "v", "do"), EXCHANGED),
            **dict.fromkeys(("attention", "grad", "grad.dk", "grad.dv"), EXCHANGED),
        },
    ),
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("way", "key_heads"), [("gather", 2), ("gather", 6), ("ulysses", 6)])
def test_attention_over_split_positions(way: str, key_heads: int, ranks: int) -> None:
    """Seven positions, so that the pieces are uneven; grouped heads where positions alone are split."""
    graph, operands = graph_of(key_heads)
    chosen, steps = WAYS[way]
    layout, cost = laid_out(graph, chosen, ranks)
    pipeline = Pipeline(1, Schedule("1f1b"), False)
    case = WholeCase(5, graph, (), {}, operands, layout, pipeline, cost, DType.FLOAT64)
    assert list(check(case)) == []
    assert steps_of(layout) == steps


LLAMA = LlamaConfig(layers=2, width=16, heads=4, key_heads=2, hidden=24, sequence=7, vocabulary=32)
BERT = BertConfig(layers=2, width=16, heads=4, sequence=6, vocabulary=24)
GPT = GptConfig(layers=2, width=16, heads=4, sequence=5, vocabulary=16)


@cache
@cache
def plan_of(model: Model, *, micro_batches: int = 1, context: str = "ring", **degrees: int) -> Plan:
    """The best plan in which positions are split by hand."""
    training = in_float64(Training(global_batch=micro_batches * degrees.get("dp", 1), num_micro_batches=micro_batches))
    config = config_of(training, context=context, **degrees)
    return plan_by_rules(request(math.prod(degrees.values()), training, model=model), config, config.axes)


def rotations(plan: Plan) -> dict[str, int]:
    """Value -> bytes that all ranks together send of it by rotations, in one act each."""
    found: dict[str, int] = {}
    for conversion in plan.layout.conversions:
        if ActKind.ROTATE in [step.kind for step in conversion.steps]:
            found[conversion.copy.value] = plan.graph.values[conversion.copy.value].spec.nbytes
    return found


@pytest.mark.parametrize(
    ("model", "degrees", "micro_batches"),
    long_but([(LLAMA, {"cp": 2}, 1), (LLAMA, {"cp": 4}, 2), (BERT, {"cp": 3}, 1), (GPT, {"cp": 2, "pp": 2}, 2)], 2, 3),
    ids=str,
)
def test_training_round_a_ring_is_training_on_one_device(
    model: Model, degrees: dict[str, int], micro_batches: int
) -> None:
    """Legal, the same losses and weights, the bytes and memory that it claims; seven and five positions are uneven."""
    assert list(check_training(plan_of(model, micro_batches=micro_batches, **degrees), steps=2)) == []


@pytest.mark.parametrize(("kind", "model"), [("full", LLAMA), ("selective", GPT)])
def test_blocks_are_computed_again(kind: str, model: Model) -> None:
    """With their own way round the ring; they are clones of the blocks of the forward pass."""
    training = in_float64(Training(global_batch=1))
    config = config_of(training, cp=2, recompute=Recompute(kind))
    plan = plan_by_rules(request(2, training, model=model), config, config.axes)
    assert list(check_training(plan, steps=2)) == []
    again = {op.name: op for op in plan.graph.ops if op.repeats and op.kind == "attention_block"}
    assert len(again) == 2 * model.layers
    assert all(plan.graph.by_name[op.repeats].attrs == op.attrs for op in again.values())


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_ring_sends_what_it_says(ranks: int) -> None:
    """Keys, values and, backward, both and their gradients p - 1 times; else what data ranks send."""
    plan = plan_of(LLAMA, cp=ranks)
    found = rotations(plan)
    for layer in range(LLAMA.layers):
        of_layer = {name: nbytes for name, nbytes in found.items() if name.startswith(f"layers.{layer}.")}
        shard = LLAMA.sequence * LLAMA.key_heads * (LLAMA.width // LLAMA.heads) * 8
        assert set(of_layer.values()) == {shard}
        forward = [name for name in of_layer if ":grad" not in name]
        backward = [name for name in of_layer if ":grad" in name]
        assert len(forward) == 2 * (ranks - 1)
        assert len(backward) == 4 * (ranks - 1)
    assert {step.kind for c in plan.layout.conversions if c.copy.value not in found for step in c.steps} <= {
        ActKind.ALL_REDUCE,
        ActKind.SLICE,
    }


def test_each_rank_holds_less_of_a_longer_sequence() -> None:
    """Activations fall with the ranks; a rank has two blocks of keys at a time, not all of them."""
    longer = replace(LLAMA, sequence=256)
    alone, two, four = (activation_nbytes(plan_of(longer, cp=ranks)) for ranks in (1, 2, 4))
    assert two < 0.6 * alone
    assert four < 0.6 * two
    plan = plan_of(longer, cp=4)
    arrangement = arrange(plan.graph, plan.layout, plan.pipeline)
    keys = [t.lifetime for t in arrangement.tensors if re.search(r"layers\.0\..*attention:k\d", t.name)]
    blocks = {op.name: time for time, op in enumerate(plan.graph.ops) if op.kind == "attention_block"}
    for name, time in blocks.items():
        if name.startswith("layers.0."):
            assert sum(life.begin <= time < life.end for life in keys) <= 2


def activation_nbytes(plan: Plan) -> int:
    """The peak of the busiest rank, without parameters and their state, of which every rank holds all."""
    held = sum(value.spec.nbytes for value in plan.graph.with_role(Role.VARIABLE))
    return max(plan.claims.peak_memory_bytes) - held


def test_rotations_run_beside_blocks() -> None:
    """Where collectives overlap, far less of them is exposed than they take."""
    model = replace(LLAMA, sequence=64, layers=1)
    training = Training(global_batch=4)
    asked = request(4, training, model=model)
    device = replace(asked.cost.cluster.device, backend="cupy")
    beside = replace(asked, cost=CostModel(replace(asked.cost.cluster, device=device), {}))
    config = config_of(training, cp=4)
    exposed = {}
    for name, how in (("after", asked), ("beside", beside)):
        plan = plan_by_rules(how, config, config.axes)
        assert plan.cluster.overlaps == (name == "beside")
        timeline = simulate(program_of(plan), steps=1).timeline
        exposed[name] = exposed_rotations_ns(timeline)
    total = exposed["after"]
    assert exposed["beside"] < 0.2 * total


def exposed_rotations_ns(timeline: Timeline) -> int:
    """Time in which a rank has a rotation under way and computes nothing."""
    found = 0
    for rank in range(timeline.ranks):
        times: dict[ActKind, list[tuple[int, int]]] = {ActKind.COMPUTE: [], ActKind.ROTATE: []}
        for record in timeline.records:
            label = timeline.actors[record.actor]
            if label.rank == rank and label.kind in times:
                times[label.kind].append((record.start_ns, record.end_ns))
        both = [*times[ActKind.COMPUTE], *times[ActKind.ROTATE]]
        found += covered_ns(both) - covered_ns(times[ActKind.COMPUTE])
    return found


def covered_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """The length of the union of intervals."""
    total = reached = 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def test_heads_are_exchanged_for_positions() -> None:
    plan = plan_of(LLAMA, cp=2, context="all_to_all")
    assert list(check_training(plan, steps=2)) == []
    assert not rotations(plan)
    exchanged = {
        c.copy.value.rsplit(".", 1)[-1] for c in plan.layout.conversions if [s.kind for s in c.steps] == EXCHANGED
    }
    assert {"q_turned", "k_turned", "v_heads", "attention"} <= exchanged
    with pytest.raises(InfeasibleError, match=r"no legal signature of op .*attention"):
        plan_of(replace(LLAMA, heads=1, key_heads=1), cp=2, context="all_to_all")


def test_the_search_takes_a_pinned_degree() -> None:
    """No plan splits positions unless it is asked to."""
    training = in_float64(Training(global_batch=2))
    asked = request(4, training, model=replace(LLAMA, layers=1))
    assert {config.cp for config in candidates_of(asked)} == {1}
    pinned = replace(asked, pins=Pins(cp=2, num_micro_batches=1))
    assert {(c.dp, c.cp, c.tp, c.pp) for c in candidates_of(pinned)} == {(2, 2, 1, 1), (1, 2, 2, 1)}
    assert list(candidates_of(replace(asked, pins=Pins(cp=3)))) == []
    two = replace(request(2, training, model=asked.model), pins=Pins(cp=2))
    plan = search(two, simulate=no_simulation, budget=Budget.of(55)).plan
    assert plan.layout.stages.placements[0].axes == ("data", "context", "tensor")
    assert plan.claims.status == "optimal"
    assert list(check_training(plan, steps=1)) == []


def test_gradients_are_reduced_over_samples_and_positions() -> None:
    plan = plan_of(replace(LLAMA, layers=1), dp=2, cp=2)
    gain = next(c for c in plan.layout.conversions if c.copy.value == "norm.norm:grad.dgain")
    assert {(step.kind, axis) for step in gain.steps for axis in step.axes} == {
        (ActKind.ALL_REDUCE, 0),
        (ActKind.ALL_REDUCE, 1),
    }
    assert list(check_training(plan, steps=1)) == []


@pytest.mark.parametrize(
    "name", long_but(["dropped", "doubled", "other kind", "other target", "regrouped", "merged"], 0, 4)
)
def test_another_rotation_is_refused(name: str) -> None:
    plan = plan_of(LLAMA, cp=4)
    found = list(mutants(plan, 1, names=[name], most=4, values=tuple(rotations(plan))))
    assert [problem for _, problem, _ in found if problem] == []
    assert {verdict for _, _, (verdict, _) in found} <= {"refused"}
    assert found or name == "merged"
