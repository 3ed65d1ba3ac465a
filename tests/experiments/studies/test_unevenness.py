"""Stragglers and jitter: what they do to a step, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.studies.unevenness import Unevenness, unevenness
from simulator.conservation import act_alone_ns
from simulator.engine import run
from simulator.faults import random_jitter, with_slow_links, with_straggler
from simulator.pipelines import pipeline
from simulator.simulate import simulate
from strategy.base.errors import InputError
from strategy.cost.cost import CostModel, port_rates
from strategy.cost.measurement import Features
from strategy.program.program import ActKind, Actor, Program, Stream, Work
from tests.experiments.conftest import Command
from tests.support.small_plans import cluster


def test_a_straggler_computes_longer_and_nothing_else_does() -> None:
    program = pipeline(4, 8, "1f1b", forward_ns=10, backward_ns=20, transfer_ns=4)
    slow = with_straggler(program, 2, 1.5)
    for before, after in zip(program.actors, slow.actors, strict=True):
        longer = before.rank == 2 and before.kind is ActKind.COMPUTE
        assert after.work.latency_ns == (3 * before.work.latency_ns // 2 if longer else before.work.latency_ns)
        assert replace(after, work=before.work) == before
    assert simulate(slow, steps=1).step_time_s > simulate(program, steps=1).step_time_s
    assert with_straggler(program, 2, 1.0) == program


def test_a_slow_link_sends_longer_and_nothing_else_does() -> None:
    far = CostModel(cluster(2, per_node=1), {}).work(Features("all_reduce", 0, 10**7, 1, "inter"), 1, [10**7])
    actors = (
        Actor("reduce", 1, ActKind.ALL_REDUCE, work=far),
        Actor("compute", 1, ActKind.COMPUTE, work=Work(10**6)),
    )
    program = Program(2, (), actors, (Stream(1, "comm", (0,)), Stream(1, "compute", (1,))), port_rates(cluster(2), 2))
    alone_ns = [act_alone_ns(program, actor) for actor in actors]
    slow = with_slow_links(program, 1, 2.0)
    assert [act_alone_ns(slow, actor) for actor in actors] == [2 * alone_ns[0] - far.latency_ns, alone_ns[1]]
    assert with_slow_links(program, 0, 2.0).resources["inter:1"] == program.resources["inter:1"]
    found = unevenness([], ["1=2x"], None, None, ranks=2)
    assert found
    assert found.applied(program) == (slow, None)
    with pytest.raises(
        InputError, match=r"2 problems[\s\S]*--slow-link 2=2x: not a rank[\s\S]*--slow-link 1=x: not a factor"
    ):
        unevenness([], ["2=2x", "1=x"], None, None, ranks=2)


def test_jitter_is_within_its_share_and_of_its_seed() -> None:
    program = pipeline(4, 8, "1f1b", forward_ns=1000, backward_ns=2000, transfer_ns=400)
    alone_ns = np.array([act_alone_ns(program, actor) for actor in program.actors])
    found = [run(program, 2, jitter=random_jitter(program, 0.05, seed)).acts for seed in (1, 1, 2)]
    assert (found[0].end_ns == found[1].end_ns).all()
    assert (found[0].end_ns != found[2].end_ns).any()
    extra = (found[0].end_ns - found[0].start_ns) / alone_ns[found[0].actor] - 1
    assert 0 <= extra.min() < 0.005
    assert 0.045 < extra.max() <= 0.0505


def test_nothing_uneven() -> None:
    program = pipeline(2, 4, "1f1b")
    assert not unevenness([], [], None, None, ranks=2)
    assert not unevenness([], [], "0%", 3, ranks=2)
    assert Unevenness().applied(program) == (program, None)


@pytest.mark.parametrize(
    ("stragglers", "jitter", "seed", "message"),
    [
        (["2=1.5x"], None, None, r"--straggler 2=1.5x: not a rank of the plan .got '2', expected 0 to 1"),
        (["-1=2x"], None, None, "not a rank of the plan"),
        (["1"], None, None, r"--straggler 1: not a factor .* such as .1.5x."),
        (["1=2"], None, None, "not a factor"),
        (["1=0x"], None, None, "not a factor"),
        (["1=nanx"], None, None, "not a factor"),
        (["1=1e7x"], None, None, "at most 1e.06"),
        (["1=2x", "1=3x"], None, None, "--straggler 1: given more than once"),
        ([], "5", None, r"--jitter: not a percentage .got '5', expected .0%. to .100%."),
        ([], "-5%", None, "not a percentage"),
        ([], "101%", None, "not a percentage"),
        ([], "much%", None, "not a percentage"),
        ([], None, 1, "--seed: a seed of nothing"),
        ([], "5%", -1, "--seed: not a seed"),
        (["7=2x"], "x", None, "2 problems"),
    ],
)
def test_what_cannot_be(stragglers: list[str], jitter: str | None, seed: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        unevenness(stragglers, [], jitter, seed, ranks=2)


def test_the_command(command: Command, plan_file: Path) -> None:
    def step_s(*more: object) -> float:
        said = command("simulate", plan_file, "--json", *more)
        assert said.code == 0, said.err
        return float(json.loads(said.out)["step_time_s"])

    assert step_s("--straggler", "1=1.5x") > 1.2 * step_s()
    assert (
        step_s() < step_s("--jitter", "5%", "--seed", "1") == step_s("--seed", "1", "--jitter", "5%") < 1.05 * step_s()
    )
    assert step_s("--jitter", "5%", "--seed", "2") != step_s("--jitter", "5%", "--seed", "1")
    said = command("simulate", plan_file, "--straggler", "9=2x")
    assert (said.code, said.out) == (2, "")
    assert "--straggler 9=2x: not a rank of the plan" in said.err


def test_what_is_too_large_unfolded_is_refused(
    command: Command, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strategy.lowering.lower.FOLDED_FROM", 0)
    monkeypatch.setattr("strategy.lowering.lower.MOST_ACTORS", 100)
    assert command("simulate", plan_file).code == 0
    said = command("simulate", plan_file, "--jitter", "5%")
    assert (said.code, said.out) == (2, "")
    assert "too large to be lowered rank by rank: 2 ranks" in said.err
