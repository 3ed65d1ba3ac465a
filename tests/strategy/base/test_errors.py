"""Errors say what, where, got, expected and what next, and each has its exit code."""

from __future__ import annotations

import pytest

from strategy.base import errors
from strategy.base.errors import (
    CertificateError,
    ContradictionError,
    DeadlockError,
    EnvironmentLacks,
    GraphError,
    InfeasibleError,
    InputError,
    InternalError,
    OutOfTimeError,
    PlanError,
    RankFault,
    RunError,
    SbpError,
    SbplanError,
    did_you_mean,
    printable,
)


def test_a_message_has_all_its_parts_in_order() -> None:
    error = InputError("not a count", where="c.toml: nodes", got="two", expected="a whole number", hint="write 2")
    assert str(error) == "c.toml: nodes: not a count (got 'two', expected a whole number); write 2"
    assert str(InputError("not a count")) == "not a count"
    assert str(InputError("not a count", got=0)) == "not a count (got 0)"
    assert str(InputError("not a count", expected="one")) == "not a count (expected one)"


def test_exit_codes_are_the_contract() -> None:
    wanted: dict[type[SbplanError], int] = {
        InputError: 2,
        SbpError: 2,
        GraphError: 2,
        PlanError: 2,
        CertificateError: 2,
        DeadlockError: 2,
        InfeasibleError: 3,
        ContradictionError: 3,
        OutOfTimeError: 4,
        EnvironmentLacks: 5,
        RunError: 6,
        RankFault: 6,
        InternalError: 70,
    }
    assert all(kind.exit_code == code for kind, code in wanted.items())
    public = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    assert all(issubclass(kind, SbplanError) for kind in public)
    assert {SbplanError, *wanted} == set(public)


def test_a_graph_error_lists_every_problem() -> None:
    error = GraphError(["op a: wrong", "op b: wrong"])
    assert str(error) == "graph: 2 problems\n  - op a: wrong\n  - op b: wrong"
    assert error.problems == ("op a: wrong", "op b: wrong")
    assert str(GraphError(["op a: wrong"])).startswith("graph: 1 problem\n")


def test_a_deadlock_draws_its_cycle() -> None:
    error = DeadlockError(["a waits for b", "b waits for a"])
    assert "  a waits for b\n  b waits for a" in str(error)
    assert error.cycle == ("a waits for b", "b waits for a")


def test_the_others_carry_their_facts() -> None:
    assert InfeasibleError("no memory", smallest_limit=5).smallest_limit == 5
    assert str(InfeasibleError("no memory", hint="add nodes")) == "infeasible: no memory; add nodes"
    fault = RankFault(3, "mlp.fc1", 7, "killed")
    assert str(fault) == "rank 3 failed in actor 'mlp.fc1' at step 7: killed"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("gpt2-smal", "did you mean 'gpt2-small'?"),
        ("GPT2-small", "did you mean 'gpt2-small'?"),
        ("zebra", "known: bert, gpt2-small"),
        ("", "known: bert, gpt2-small"),
    ],
)
def test_hints(word: str, hint: str) -> None:
    assert did_you_mean(word, ["gpt2-small", "bert"]) == hint


def test_no_hint_without_known_words() -> None:
    assert did_you_mean("x", []) == ""


def test_what_would_steer_a_terminal_is_written_as_an_escape() -> None:
    assert printable("plan \u00e4\u03bb.json:\n\tline 2") == "plan \u00e4\u03bb.json:\n\tline 2"
    assert printable("\x1b[2Jgone\r\x07\x9b") == "\\x1b[2Jgone\\r\\x07\\x9b"
    assert printable("a\u202eb\u200b\udce9") == "a\\u202eb\\u200b\\udce9"
