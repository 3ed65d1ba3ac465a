"""The arrangement of laid-out graphs: every action after what it reads, every tensor alive when it is used."""

from __future__ import annotations

import itertools
import random

import pytest

from executor.train import program_of
from strategy.graph.graph import Role
from strategy.layout.arrangement import Arrangement, Lifetimes, arrange
from strategy.layout.layout import home_of
from strategy.layout.schedule import Schedule, chunk_order
from strategy.models.wide_deep import WideDeepConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.program.program import ActKind
from strategy.program.protocol import admit
from strategy.sbp.tensor import Rate
from tests.support.long_parameters import long_but
from tests.support.random_graphs import GraphCase, Priced, every_layout, random_case
from tests.support.small_plans import config_of, random_plan, request

SEEDS = range(20)


def arranged(seed: int) -> list[tuple[GraphCase, Priced, Arrangement]]:
    case = random_case(seed, axes=1 + seed % 2, stages=1 + seed % 3 // 2, most=20)
    layouts = itertools.islice(every_layout(case), 5)
    return [(case, priced, arrange(case.graph, priced.layout, case.pipeline)) for priced in layouts]


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_read_before_it_is_written(seed: int) -> None:
    for case, _, arrangement in arranged(seed):
        state = {value.name for value in case.graph.with_role(Role.VARIABLE)}
        written = {i for i, tensor in enumerate(arrangement.tensors) if tensor.name in state}
        for action in arrangement.actions:
            assert set(action.reads) <= written, action.name
            assert not written & set(action.writes), action.name
            written |= set(action.writes)
        assert written == set(range(len(arrangement.tensors)))


@pytest.mark.parametrize("seed", range(40))
def test_actions_happen_when_lifetimes_say(seed: int) -> None:
    """What comes from another stage is converted on arrival right before its first reader, not when it was sent."""
    for _, _, arrangement in arranged(seed):
        times = [action.time for action in arrangement.actions if action.kind is not ActKind.TRANSFER]
        assert times == sorted(times)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_tensor_lives_while_it_is_used(seed: int) -> None:
    for case, _, arrangement in arranged(seed):
        for action in arrangement.actions:
            for index in (*action.reads, *action.writes, *action.updates):
                tensor = arrangement.tensors[index]
                assert tensor.lifetime.begin <= action.time < tensor.lifetime.end, (action.name, tensor.name)
                assert 0 <= tensor.lifetime.begin < tensor.lifetime.end <= len(case.graph.ops)


@pytest.mark.parametrize("seed", SEEDS)
def test_ops_read_what_their_signatures_say(seed: int) -> None:
    for case, priced, arrangement in arranged(seed):
        ops = [action for action in arrangement.actions if action.op]
        assert [action.op for action in ops] == [op.name for op in case.graph.ops]
        for action in ops:
            op, signature = case.graph.by_name[action.op], priced.layout.signatures[action.op]
            held = [arrangement.tensors[i] for i in (*action.reads, *action.writes, *action.updates)]
            assert [tensor.value for tensor in held] == [*op.inputs, *op.outputs, *op.updates]
            assert [tensor.layout for tensor in held] == list(signature.layouts)
            assert {tensor.stage for tensor in held} == {action.stage}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_is_made_once_however_many_read_it(seed: int) -> None:
    for case, priced, arrangement in arranged(seed):
        copies = [(t.value, t.stage, t.layout) for t in arrangement.tensors if "." not in t.name.partition("@")[2]]
        assert len(copies) == len(set(copies))
        names = [(tensor.name, tensor.stage) for tensor in arrangement.tensors]
        assert len(names) == len(set(names))
        homes = [home_of(case.graph, case.stages, priced.layout.signatures, name) for name in case.graph.values]
        loads = [action for action in arrangement.actions if action.kind is ActKind.LOAD]
        assert (not loads) == all(home is not None for home in homes)
        assert {stage: len(actions) for stage, actions in arrangement.by_stage.items()} == {
            stage: sum(action.stage == stage for action in arrangement.actions)
            for stage in {action.stage for action in arrangement.actions}
        }


def test_lifetimes_do_not_depend_on_signatures() -> None:
    case = random_case(0, most=60)
    found: dict[str, set[object]] = {}
    for priced in every_layout(case):
        for tensor in arrange(case.graph, priced.layout, case.pipeline).tensors:
            if tensor.name == tensor.value:
                found.setdefault(tensor.name, set()).add(tensor.lifetime)
    assert {len(lifetimes) for lifetimes in found.values()} == {1}
    lifetimes = Lifetimes(case.graph, case.stages, case.pipeline)
    for name, value in case.graph.values.items():
        if value.rate is Rate.STEP and name in found:
            assert found[name] == {lifetimes.whole(1)}


@pytest.mark.slow
@pytest.mark.parametrize("plans", long_but([2, 10], 0))
def test_a_conversion_is_made_in_the_first_chunk_that_reads_it(plans: int) -> None:
    """By the order of the stage's chunks: of a V, the first stage has the end, too, where backward passes begin."""
    schedule = Schedule.ZBV
    model = WideDeepConfig(layers=6, width=8, vocabulary=16, embedding=4, deep=2, wide=3, dense=2)
    training = Training(global_batch=8, num_micro_batches=2, precision=Precision.BF16)
    rng, seen = random.Random(4), 0
    config = config_of(training, dp=2, pp=2, schedule=schedule, laps=2)
    for _ in range(plans):
        plan = random_plan(request(4, training, model=model), config, rng)
        actions = plan.priced.arrangement.actions
        for stage in range(2):
            turns = {(c.phase, c.lap): -n for n, c in enumerate(reversed(list(chunk_order(schedule, 2, stage, 2, 2))))}
            made = {a.writes[0]: a for a in actions if a.step is not None and a.rate is Rate.MICRO_BATCH}
            for action in (a for a in actions if a.stage == stage and (a.phase, a.lap) in turns):
                for source in (made[tensor] for tensor in action.reads if tensor in made):
                    if source.stage == stage and (source.phase, source.lap) in turns:
                        assert turns[source.phase, source.lap] <= turns[action.phase, action.lap], (source, action)
                        seen += source.lap != action.lap
        admit(program_of(plan))
    assert seen
