"""Mutated plans, each under the hash of its own content: verify refuses them and names what is wrong."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from strategy.base.errors import DeadlockError, EnvironmentLacks, InputError, present
from strategy.cost.cost import CostModel
from strategy.graph.ops import op_definition
from strategy.graph.signature import Signature, op_signatures
from strategy.layout.config import Offload
from strategy.models.decoder import DecoderConfig
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan.plan import FitClaim, Plan, most_memory_bytes, plan_text, read_plan, write_plan
from strategy.plan.verify import Admitted, admitted, verify
from strategy.plan.verify import refusal as refusal_of
from strategy.program.program import Program
from strategy.sbp.sbp import B, format_nd
from strategy.space.trainer_space import TargetTrainer
from tests.strategy.plan.test_plan import stamped
from tests.support.long_parameters import long_but
from tests.support.mixed_clusters import mixed
from tests.support.small_plans import config_of, deduced_plan, lowered, plan_by_rules, random_plan, request

Document = dict[str, Any]
Mutant = tuple[str, Document]
"""What the refusal must name, and the mutated document."""


@cache
def real_plan(kind: str) -> Plan:
    training = Training(global_batch=4, num_micro_batches=2)
    if kind == "random":
        return random_plan(request(4, training), config_of(training, dp=2, tp=2), random.Random(3))
    pp = int(kind == "pipeline") + 1
    config = config_of(training, tp=2, pp=pp)
    return plan_by_rules(request(2 * pp, training), config, ("data", "tensor"))


KINDS = ("tensor", "pipeline", "random")


@cache
def content(kind: str) -> Document:
    found: Document = json.loads(plan_text(real_plan(kind)))
    return found


FIGURES = ("objective_s", "peak_memory_bytes", "sent_bytes_per_step")
"""What refuses a chain without one of its steps, where the others lead there too."""


def refusal(document: Document, path: Path) -> str:
    path.write_text(stamped(document))
    try:
        return "\n".join(verify(read_plan(path)))
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("kind", long_but(KINDS, 0, 1))
def test_unchanged_plans_are_accepted(kind: str, tmp_path: Path) -> None:
    assert refusal(content(kind), tmp_path / "plan.json") == ""


def signature_mutants(kind: str, rng: random.Random) -> Iterator[Mutant]:
    """For sixty ops, one tensor's SBP along one axis replaced such that the signature is not legal."""
    plan, mesh = real_plan(kind), real_plan(kind).layout.stages.placements[0].mesh
    for op in rng.sample(plan.graph.ops, 60):
        legal = {json.dumps([format_nd(nd) for nd in s.layouts]) for s in op_signatures(plan.graph, op, mesh)}
        neighbours = []
        for part in ("inputs", "outputs", "updates"):
            for position, layout in enumerate(content(kind)["ops"][op.name][part]):
                for axis in range(len(layout)):
                    for sbp in ("B", "P(sum)", "P(max)", "S(0)", "S(1)", "S(7)"):
                        entry = copy.deepcopy(content(kind)["ops"][op.name])
                        entry[part][position][axis] = sbp
                        if json.dumps(entry["inputs"] + entry["outputs"] + entry["updates"]) not in legal:
                            neighbours.append(entry)
        for entry in rng.sample(neighbours, min(1, len(neighbours))):
            yield f"op {op.name} ", {**content(kind), "ops": {**content(kind)["ops"], op.name: entry}}


def boxing_mutants(kind: str, rng: random.Random) -> Iterator[Mutant]:
    """Conversions dropped, doubled or redirected; steps dropped, or of another kind, axis or target."""
    boxing = content(kind)["boxing"]
    for index in sorted(rng.sample(range(len(boxing)), min(8, len(boxing)))):
        entry = boxing[index]

        def with_entry(*replaced: Document, at: int = index) -> Mutant:
            return boxing[at]["value"], {**content(kind), "boxing": [*boxing[:at], *replaced, *boxing[at + 1 :]]}

        yield with_entry()
        yield with_entry(entry, entry)
        yield with_entry({**entry, "steps": []})
        yield with_entry({**entry, "from": {**entry["from"], "layout": ["B", "S(1)"]}})
        for number, step in enumerate(entry["steps"]):
            rest = entry["steps"][:number], entry["steps"][number + 1 :]
            other_kind = "all_reduce" if step["kind"] != "all_reduce" else "all_gather"
            changed = (
                {"kind": other_kind},
                {"axes": [1 - axis for axis in step["axes"]] if len(step["axes"]) == 1 else [0]},
                {"layout": ["S(0)", "S(5)"]},
            )
            yield with_entry({**entry, "steps": [*rest[0], *rest[1]]})
            for change in changed:
                yield with_entry({**entry, "steps": [*rest[0], {**step, **change}, *rest[1]]})


def figure_mutants(kind: str, rng: random.Random) -> Iterator[Mutant]:
    """What the plan claims, and the degrees, settings and devices that it is about."""
    base = content(kind)
    for key in ("peak_memory_bytes", "sent_bytes_per_step"):
        for rank in range(len(base[key])):
            for change in (-1, 1, 10**9) if rank == 0 else (1,):
                figures = [figure + change * (r == rank) for r, figure in enumerate(base[key])]
                yield key, {**base, key: figures}
        yield key, {**base, key: base[key][:-1]}
    yield "objective_s", {**base, "objective_s": base["objective_s"] * (1 + 1e-6)}
    yield "gap", {**base, "gap": base["gap"] + 0.01}
    yield "gap", {**base, "lower_bound_s": base["lower_bound_s"] * 0.9 - 1e-9}
    yield "lower_bound_s", {**base, "lower_bound_s": base["objective_s"] * 1.1, "gap": 0.0}
    yield "memory", {**base, "memory_limit_bytes": max(base["peak_memory_bytes"]) - 1}
    yield "memory_limit_bytes", {**base, "memory_limit_bytes": 2**41}
    yield "status", {**base, "status": "splendid"}
    for name in ("dp", "tp", "pp", "micro_batch", "num_micro_batches", "cp", "ep", "virtual_stages"):
        yield "config", {**base, "config": {**base["config"], name: base["config"][name] + 1}}
    yield "config.schedule", {**base, "config": {**base["config"], "schedule": "zbv"}}
    yield "recompute", {**base, "config": {**base["config"], "recompute": "full"}}
    for name, value in (("global_batch", 8), ("num_micro_batches", 4)):
        yield "config", {**base, "training": {**base["training"], name: value}}
    first = base["stages"][0]
    changes: list[Document] = [{"devices": [0, 1, 2, 7][: len(first["devices"])]}, {"axes": ["tensor", "data"]}]
    for moved in (*changes, {"mesh": [4, 1]}):
        yield "", {**base, "stages": [{**first, **moved}, *base["stages"][1:]]}
    yield "stages", {**base, "stages": base["stages"] * 2}
    for name in rng.sample(sorted(base["ops"]), 4):
        for stage in (-1, 7):
            yield f"op {name}", {**base, "ops": {**base["ops"], name: {**base["ops"][name], "stage": stage}}}
            yield f"op {name}", {**base, "ops": {**base["ops"], name: {**base["ops"][name], "lap": stage}}}
        without = {other: entry for other, entry in base["ops"].items() if other != name}
        yield f"op {name}", {**base, "ops": without}
        yield "op stray", {**base, "ops": {**base["ops"], "stray": base["ops"][name]}}
    yield "objective_s", {**base, "cluster": {**base["cluster"], "intra": {"bytes_per_s": 1e3, "latency_s": 1.0}}}


@pytest.mark.parametrize(
    ("kind", "mutants"),
    long_but(itertools.product(KINDS, [signature_mutants, boxing_mutants, figure_mutants]), 0, 1, 5),
)
def test_mutants_are_refused_by_name(
    kind: str, mutants: Callable[[str, random.Random], Iterator[Mutant]], tmp_path: Path
) -> None:
    count = 0
    for named, mutant in mutants(kind, random.Random(0)):
        if mutant == content(kind):
            continue
        found = refusal(mutant, tmp_path / "plan.json")
        assert found, (named, count)
        other_way = mutants is boxing_mutants and found.startswith(FIGURES)
        if not other_way and named.removeprefix("op ").strip() not in found:
            assert named == "config", (named, found)
            assert any(word in found for word in ("stage", "config", "training", "batch")), found
        count += 1
    assert count >= 15


def test_moving_an_op_to_another_stage_is_noticed(tmp_path: Path) -> None:
    base = content("pipeline")
    for name in random.Random(1).sample(sorted(base["ops"]), 6):
        entry = {**base["ops"][name], "stage": 1 - base["ops"][name]["stage"]}
        assert refusal({**base, "ops": {**base["ops"], name: entry}}, tmp_path / "plan.json"), name


def test_a_conversion_that_nobody_wants_is_superfluous(tmp_path: Path) -> None:
    base = content("tensor")
    value = "layers.0.mlp.fc1.weight"
    home = base["ops"][f"{value}:adamw"]["updates"][0]
    stray = {
        "value": value,
        "from": {"stage": 0, "layout": home},
        "to": {"stage": 0, "layout": ["S(0)", "B"]},
        "steps": [],
    }
    assert value in refusal({**base, "boxing": [*base["boxing"], stray]}, tmp_path / "plan.json")
    stray["value"] = "nothing"
    assert "nothing" in refusal({**base, "boxing": [*base["boxing"], stray]}, tmp_path / "plan.json")


def test_a_copy_of_what_is_there_already_is_superfluous(tmp_path: Path) -> None:
    base = content("tensor")
    value = "layers.0.mlp.fc1.weight"
    home = base["ops"][f"{value}:adamw"]["updates"][0]
    end = {"stage": 0, "layout": home}
    stray = {"value": value, "from": end, "to": end, "steps": []}
    found = refusal({**base, "boxing": [*base["boxing"], stray]}, tmp_path / "plan.json")
    assert "where it is already; its boxing is superfluous" in found


def test_a_program_that_would_hang_is_a_problem_of_its_plan() -> None:
    def hangs(program: Program) -> None:
        raise DeadlockError(["a waits for b", "b waits for a"])

    found = admitted(real_plan("tensor"), hangs)
    assert isinstance(found, list)
    assert "a waits for b" in found[0]


def test_hosts_hold_no_more_than_they_have(tmp_path: Path) -> None:
    training = Training(global_batch=4, num_micro_batches=2)
    plan = plan_by_rules(request(2, training), config_of(training, dp=2, offload=Offload.ALL), ("data",))
    assert verify(plan) == []
    found: Document = json.loads(plan_text(plan))
    found["cluster"]["host"]["memory_bytes"] = 1000
    assert "host memory: " in refusal(found, tmp_path / "plan.json")


def test_what_the_machine_lacks_is_no_problem_of_the_plan() -> None:
    def lacks(program: Program) -> None:
        raise EnvironmentLacks("no compiler")

    with pytest.raises(EnvironmentLacks, match="no compiler"):
        admitted(real_plan("tensor"), lacks)


def test_a_plan_is_checked_with_the_program_that_its_caller_has() -> None:
    plan = real_plan("pipeline")
    whole = lowered(plan)
    found = admitted(plan, lambda program: program is whole, program=whole)
    assert isinstance(found, Admitted)
    assert found.program is whole
    assert found.result
    other = lowered(real_plan("tensor"))
    assert any("peak_memory_bytes" in problem for problem in verify(plan, other))


def test_all_problems_are_one_refusal() -> None:
    error = refusal_of(Path("plan.json"), ["gap: 1 claimed", "status: 2 claimed"])
    assert str(error) == "plan.json: refused: gap: 1 claimed\n  status: 2 claimed"


def test_a_claim_to_fit_leaves_its_margin_free() -> None:
    """Unless a trainer runs the plan, whose file tells what it holds."""
    plan = real_plan("tensor")
    there = plan.cluster.largest_memory_bytes
    for trainer in (None, *TargetTrainer):
        fit = FitClaim(0.9, trainer)
        most = most_memory_bytes(plan.cluster, fit)
        assert (most < there) == (trainer is None)
        assert verify(plan.claiming(replace(plan.claims, fit=fit, memory_limit_bytes=most))) == []
        more = verify(plan.claiming(replace(plan.claims, fit=fit, memory_limit_bytes=most + 1)))
        said = "" if trainer else f"; {most} fit with probability 0.9"
        assert more == [f"memory_limit_bytes: {most + 1}, a device has {there}{said}"]
    assert most_memory_bytes(plan.cluster, FitClaim(0.99)) < most_memory_bytes(plan.cluster, FitClaim(0.5))


GPT = GptConfig(layers=3, width=8, heads=2, sequence=4, vocabulary=16)
EXPERTS = DecoderConfig(
    layers=1, width=8, heads=2, key_heads=1, head_width=4, hidden=16, sequence=4, vocabulary=16, experts=4,
    choices=2, expert_hidden=8, sparse=(1,),
)  # fmt: skip
BATCH = Training(global_batch=4, num_micro_batches=2)


@cache
def in_order_plan() -> Plan:
    """One layer on the second of two devices, two on the first."""
    asked = replace(request(2, BATCH, model=GPT), cost=CostModel(mixed(1.0, 2.0, per_node=1), {}))
    config = config_of(BATCH, pp=2, runs=(1, 2), stage_order=(1, 0))
    return deduced_plan(asked, config, config.axes)


@cache
def strided_plan() -> Plan:
    """Tensor ranks are two apart, and ranks of the data axis neighbours."""
    config = config_of(BATCH, dp=2, tp=2, strides=(4, 1, 2))
    return deduced_plan(request(4, BATCH, per_node=2), config, config.axes)


@cache
def shared_plan() -> Plan:
    config = config_of(BATCH, dp=2, zero_stage=1, zero_min_size=8)
    return deduced_plan(request(2, BATCH), config, config.axes)


@cache
def experts_plan() -> Plan:
    config = config_of(BATCH, dp=2, ep=2)
    return deduced_plan(request(2, BATCH, model=EXPERTS), config, config.axes)


@pytest.mark.parametrize("made", [in_order_plan, strided_plan, shared_plan, experts_plan])
def test_plans_of_rarer_settings_are_accepted_as_they_are_read(made: Callable[[], Plan], tmp_path: Path) -> None:
    write_plan(made(), tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again == made()
    assert verify(again) == []


@pytest.mark.parametrize(
    ("made", "changed", "said"),
    [
        (in_order_plan, {"runs": [2, 1]}, "not on stage 0, lap 0, where config.runs has layer 1"),
        (in_order_plan, {"runs": [2, 2]}, "config.runs: 4 layers in all, the model has 3"),
        (
            in_order_plan,
            {"stage_order": [0, 1]},
            "stage 0: devices (1,), but config.stage_order has share 0 of 1 ranks",
        ),
        (strided_plan, {"strides": [4, 2, 1]}, "stage 0: devices (0, 2, 1, 3), but by config.strides (0, 1, 2, 3)"),
        (shared_plan, {"zero_stage": 2}, "is not how stage 2 of ZeRO shares out"),
    ],
)
def test_a_layout_that_is_not_what_its_configuration_says_is_refused(
    made: Callable[[], Plan], changed: Document, said: str, tmp_path: Path
) -> None:
    document: Document = json.loads(plan_text(made()))
    document["config"].update(changed)
    assert said in refusal(document, tmp_path / "plan.json")


def test_experts_that_are_not_split_by_expert_are_refused() -> None:
    """Along the axis that is theirs; the signature is a legal one."""
    plan = experts_plan()
    axis = plan.config.axes.index("expert")
    op = next(op for op in plan.graph.ops if op_definition(op.kind).expert_weights is not None)
    place = present(op_definition(op.kind).expert_weights, "the place of the weights")
    legal = op_signatures(plan.graph, op, plan.layout.stages.placement(op.name).mesh)
    whole: Signature = next(one for one in legal if one.inputs[place][axis] == B)
    signatures = {**plan.layout.signatures, op.name: whole}
    (problem,) = verify(replace(plan, layout=replace(plan.layout, signatures=signatures)))
    assert problem.startswith(f"op {op.name}: ")
    assert problem.endswith("does not split experts by expert, but config.ep is 2")
