"""Mutated boxing: a step replaced, dropped or regrouped is refused by `verify`, or changes nothing.

Every mutant is written as a plan of its own: what it claims of memory, time and traffic follows from its own steps as
far as these can be followed, and the digests are those of its content. So what refuses it is its boxing alone. A
mutant that is accepted is trained, and must equal one device.
"""

from __future__ import annotations

import copy
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from strategy.base.errors import InputError
from strategy.comm.boxing import layouts_of, step_between
from strategy.layout.layout import wanted_copies
from strategy.layout.schedule import Schedule
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan, plan_text, read_plan
from strategy.plan.verify import verify
from strategy.program.program import ActKind
from strategy.sbp.sbp import Split, format_nd, parse_nd
from strategy.sbp.tensor import DType
from tests.campaigns.outcome import Outcome
from tests.campaigns.transparency import check
from tests.strategy.plan.test_plan import stamped
from tests.support.small_plans import config_of, random_plan, reclaimed, request

Step = dict[str, Any]
Steps = list[Step]
Mutate = Callable[[Plan, dict[str, Any], int, random.Random], Steps | None]
"""(plan, entry of a conversion, number of the step, random) -> other steps, or None where there is no such mutant."""

MUTANTS_PER_PLAN = 6


def dropped(plan: Plan, entry: dict[str, Any], at: int, rng: random.Random) -> Steps | None:
    """Without the step."""
    return [*entry["steps"][:at], *entry["steps"][at + 1 :]]


def doubled(plan: Plan, entry: dict[str, Any], at: int, rng: random.Random) -> Steps | None:
    """The step twice."""
    return [*entry["steps"][: at + 1], *entry["steps"][at:]]


def other_kind(plan: Plan, entry: dict[str, Any], at: int, rng: random.Random) -> Steps | None:
    """Another collective."""
    kinds = [str(kind) for kind in ActKind if kind not in (ActKind.COMPUTE, ActKind.LOAD)]
    kinds.remove(entry["steps"][at]["kind"])
    return _with(entry, at, {"kind": rng.choice(kinds)})


def other_target(plan: Plan, entry: dict[str, Any], at: int, rng: random.Random) -> Steps | None:
    """To another layout of the tensor."""
    return _with(entry, at, {"layout": rng.choice(_layouts(plan, entry))})


def regrouped(plan: Plan, entry: dict[str, Any], at: int, rng: random.Random) -> Steps | None:
    """Among the ranks of other axes."""
    choices = [[], [0], [1], [0, 1], [1, 0]]
    choices = [axes for axes in choices if axes != entry["steps"][at]["axes"]]
    return _with(entry, at, {"axes": rng.choice(choices)})


def merged(plan: Plan, entry: dict[str, Any], at: int, rng: random.Random) -> Steps | None:
    """The step and the next as one."""
    if at + 1 == len(entry["steps"]):
        return None
    one, two = entry["steps"][at : at + 2]
    axes = sorted({*one["axes"], *two["axes"]})
    both = {**two, "kind": rng.choice((one["kind"], two["kind"])), "axes": axes}
    return [*entry["steps"][:at], both, *entry["steps"][at + 2 :]]


def swapped(plan: Plan, entry: dict[str, Any], at: int, rng: random.Random) -> Steps | None:
    """The step after the next."""
    if at + 1 == len(entry["steps"]):
        return None
    one, two = entry["steps"][at : at + 2]
    return [*entry["steps"][:at], two, one, *entry["steps"][at + 2 :]]


def detoured(plan: Plan, entry: dict[str, Any], at: int, rng: random.Random) -> Steps | None:
    """By way of another layout, by steps that lead there: right, if the steps are."""
    step = entry["steps"][at]
    if step["kind"] == ActKind.TRANSFER:
        return None
    before = entry["steps"][at - 1]["layout"] if at else entry["from"]["layout"]
    via = rng.choice(_layouts(plan, entry))
    first, second = _step(before, via), _step(via, step["layout"])
    if first is None or second is None:
        return None
    return [*entry["steps"][:at], first, second, *entry["steps"][at + 1 :]]


MUTATIONS: dict[str, Mutate] = {
    mutate.__name__.replace("_", " "): mutate
    for mutate in (dropped, doubled, other_kind, other_target, regrouped, merged, swapped, detoured)
}
QUOTAS = {**dict.fromkeys(MUTATIONS, 0.1), "refused": 0.5, "accepted": 0.02, "transfer": 0.1}


def _with(entry: dict[str, Any], at: int, change: Step) -> Steps:
    steps: Steps = copy.deepcopy(entry["steps"])
    steps[at].update(change)
    return steps


def _layouts(plan: Plan, entry: dict[str, Any]) -> list[list[str]]:
    spec = plan.graph.values[entry["value"]].spec
    mesh = plan.layout.stages.placements[0].mesh
    turned = [[Split(0, 1), *(Split(1, shift) for shift in range(1, parts))] if parts > 1 else [] for parts in mesh]
    return [format_nd(nd) for nd in layouts_of(spec, mesh, special=turned)]


def _step(source: list[str], target: list[str]) -> Step | None:
    found = None if source == target else step_between(parse_nd(source), parse_nd(target))
    return None if found is None else {"kind": str(found.kind), "axes": list(found.axes), "layout": target}


def run(cases: int, seed: int) -> Outcome:
    """Mutate the boxing of `cases` random plans."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        plan = mutable_plan(number)
        problems: list[str] = []
        exercised: list[str] = []
        for name, problem, seen in mutants(plan, number):
            exercised += [name, *seen]
            problems += [f"{name}: {problem}"] if problem else []
        again = f"python -m tests.campaigns mutation --cases 1 --seed {number}"
        outcome.add(again, problems, exercised)
    return outcome


def mutable_plan(seed: int) -> Plan:
    """A plan of 2 to 6 ranks that `verify` accepts, every op under a random signature."""
    rng = random.Random(seed)
    dp, tp, pp = rng.choice(((2, 1, 1), (1, 2, 1), (1, 3, 1), (2, 2, 1), (2, 3, 1), (1, 2, 2), (2, 1, 2), (1, 3, 2)))
    heads = rng.choice((2, 3, 4))
    model = GptConfig(
        layers=2, width=heads * 4, heads=heads, sequence=rng.randint(3, 6), vocabulary=rng.randint(12, 24)
    )
    schedule = random.Random(f"schedule {seed}").choice(list(Schedule))
    micro_batches = pp if schedule is Schedule.INTERLEAVED and pp > 1 else rng.choice((1, 2, 3))
    training = Training(
        global_batch=micro_batches * dp * rng.choice((1, 2)),
        num_micro_batches=micro_batches,
        dtype=DType.FLOAT64,
        seed=seed,
    )
    config = config_of(training, dp=dp, tp=tp, pp=pp, schedule=schedule)
    return random_plan(request(dp * tp * pp, training, model=model), config, rng)


def mutants(
    plan: Plan,
    seed: int,
    *,
    names: Sequence[str] = tuple(MUTATIONS),
    most: int = MUTANTS_PER_PLAN,
    values: Sequence[str] = (),
) -> Iterator[tuple[str, str, list[str]]]:
    """(mutation, what is wrong with its refusal or acceptance, what it exercised) of some mutants of a plan.

    Conversions of `values` alone are changed, if any are named.
    """
    rng = random.Random(seed)
    base = json.loads(plan_text(plan))
    pools = _pools([entry if entry["value"] in values or not values else {"steps": []} for entry in base["boxing"]])
    found = 0
    for _ in range(8 * most):
        name = rng.choice(names)
        index = rng.choice(rng.choice(pools))
        entry = base["boxing"][index]
        at = rng.randrange(len(entry["steps"]))
        steps = MUTATIONS[name](plan, entry, at, rng)
        if steps is None or steps == entry["steps"]:
            continue
        boxing = [*base["boxing"][:index], {**entry, "steps": steps}, *base["boxing"][index + 1 :]]
        problem, verdict = judge(plan, {**base, "boxing": boxing}, entry)
        yield name, problem, [verdict, entry["steps"][at]["kind"]]
        found += 1
        if found == most:
            return


def _pools(boxing: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Conversions of any steps, of several, and between stages: drawn from in turn, for the latter are rare."""
    kinds = [[step["kind"] for step in entry["steps"]] for entry in boxing]
    found = (
        [i for i, steps in enumerate(kinds) if steps],
        [i for i, steps in enumerate(kinds) if len(steps) > 1],
        [i for i, steps in enumerate(kinds) if ActKind.TRANSFER in steps],
    )
    return [pool for pool in found if pool]


def judge(plan: Plan, document: dict[str, Any], entry: dict[str, Any]) -> tuple[str, str]:
    """What is wrong with how a mutant fares, and how it fares."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(stamped(document))
        try:
            mutant = read_plan(path)
        except InputError as error:
            said = str(error)
        else:
            mutant = reclaimed(mutant)
            path.write_text(plan_text(mutant))
            said = "\n".join(verify(read_plan(path)))
    if said:
        named = [name for name in _readers(plan, entry) if f"op {name}" in said]
        return ("" if named else f"no op that reads {entry['value']} is named: {said}"), "refused"
    wrong = list(check(mutant, steps=1))
    return ("; ".join(wrong[:3]) and f"accepted, and not equal: {'; '.join(wrong[:3])}"), "accepted"


def _readers(plan: Plan, entry: dict[str, Any]) -> list[str]:
    """The ops that read a copy."""
    copies = wanted_copies(plan.graph, plan.layout.stages, plan.layout.signatures)
    wanted = entry["value"], entry["to"]["stage"], entry["to"]["layout"]
    return [op.name for c, ops in copies.items() if (c.value, c.stage, format_nd(c.layout)) == wanted for op in ops]
