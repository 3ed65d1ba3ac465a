"""`sbplan bench search`: every method is asked and checked, and being worse than one is a failure."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from experiments.bench import search_bench, search_problems
from experiments.bench.search_bench import compare, table
from experiments.bench.search_problems import LAYOUTS, PresetLayout, SearchProblem, contest_problems, preset_problems
from strategy.base.budget import Budget
from strategy.base.errors import InternalError
from strategy.base.status import Status
from strategy.ilp.baselines import BASELINES, Found
from strategy.ilp.problem import Edge, Node, Problem
from strategy.ilp.solve import solve
from tests.experiments.conftest import Command
from tests.support.long_parameters import long_but

TRAP = Problem("trap", (Node("a", (0, 1)), Node("b", (0,))), (Edge(0, 1, (9, 0)),))
CASE = SearchProblem("trap", lambda: TRAP)


def test_there_are_twenty_graphs_and_four_instances() -> None:
    names = [case.name for case in (*preset_problems(), *contest_problems())]
    assert (len(preset_problems()), len(contest_problems()), len(set(names))) == (20, 4, 24)
    wanted = {"gpt2-small 2x4", "gpt2-small 2x4 folded", "llama3-8b 8x8 folded", "iopddl A", "iopddl S"}
    assert wanted <= set(names)
    assert len({(layout.data, layout.tensor) for layout in LAYOUTS}) >= 5
    assert any(layout.limit for layout in LAYOUTS)


@pytest.mark.parametrize(("number", "nodes"), long_but(enumerate([34932, 816, 32894, 28526]), 1))
def test_every_shipped_instance_is_read(number: int, nodes: int) -> None:
    assert len(contest_problems()) == 4
    assert len(contest_problems()[number].build().nodes) == nodes


def test_all_methods_are_compared() -> None:
    found = compare(CASE, 1.0)
    assert list(found.results) == ["ours", *BASELINES]
    assert (found.results["ours"].cost, found.results["greedy"].cost) == (1, 9)
    assert (found.lower_bound, found.nodes, found.edges, found.cells, found.worse_than) == (1, 2, 1, 2, ())
    assert found.results["ours"].gap == 0
    assert found.results["greedy"].gap == pytest.approx(8 / 9)
    lines = table([found]).splitlines()
    assert len(lines) == 1 + 1 + len(BASELINES)
    assert "1*" in lines[1]
    assert "9 " in lines[2]


@pytest.mark.long
def test_ours_is_no_worse_on_a_graph_of_ours() -> None:
    found = compare(SearchProblem("mlp", PresetLayout("mlp-tiny", 1, 2, 8, folded=False).build), 10.0)
    assert found.worse_than == ()
    assert found.results["ours"].gap == 0


def test_an_illegal_answer_is_a_bug() -> None:
    shut = replace(TRAP, edges=(Edge(0, 1, (10**18, 0)),))
    with pytest.raises(InternalError, match="illegal"):
        compare(SearchProblem("shut", lambda: shut), 1.0, {"liar": lambda problem, limit_s: Found((0, 0))})


@pytest.mark.long
def test_folding_ties_decisions_which_costs_next_to_nothing() -> None:
    folded = solve(PresetLayout("gpt-tiny", 1, 2, 8).build(), budget=Budget.of(60))
    free = solve(PresetLayout("gpt-tiny", 1, 2, 8, folded=False).build(), budget=Budget.of(60))
    assert folded.status is free.status is Status.OPTIMAL
    assert free.cost is not None
    assert folded.cost is not None
    assert free.cost <= folded.cost <= 1.002 * free.cost  # layers at the ends may be laid out otherwise


def test_the_verb_prints_a_document_or_a_table(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_problems, "preset_problems", lambda: (CASE,))
    monkeypatch.setattr(search_problems, "contest_problems", lambda: ())
    said = command("bench", "search", "--time-limit", "1", "--json")
    assert said.code == 0
    document = json.loads(said.out)
    assert document["never_worse"] is True
    assert document["problems"][0]["results"]["integer-program"]["cost"] == 1
    assert said.err.startswith("1 of 1: trap: built in")
    said = command("bench", "search", "--time-limit", "1")
    assert (said.code, said.out.splitlines()[0].split()) == (0, ["problem", "method", "cost", "gap", "time"])


def test_being_worse_is_a_failure(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_problems, "preset_problems", lambda: (CASE,))
    monkeypatch.setattr(search_problems, "contest_problems", lambda: ())
    poor = replace(solve(TRAP), cost=9, choice=(0, 0))
    monkeypatch.setattr(search_bench, "solve", lambda problem, budget: poor)
    said = command("bench", "search", "--time-limit", "1", "--json")
    assert said.code == 6
    assert json.loads(said.out)["never_worse"] is False
    assert "ours costs more than another's on trap (elimination, integer-program" in said.err
