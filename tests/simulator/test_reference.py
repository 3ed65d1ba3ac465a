"""The reference engine: it drives the protocol itself, and is the measure of the compiled one (`test_engine`)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from simulator import reference
from simulator.pipelines import pipeline
from strategy.base.errors import DeadlockError
from strategy.layout.schedule import Schedule
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream, Work
from strategy.sbp.tensor import DType


def test_a_pipeline_takes_what_its_drawing_says() -> None:
    """1F1B, 2 stages, 2 micro-batches, a backward pass of 2.

    F0 F1 .  .  B0 B0 .  B1 B1
    .  F0 B0 B0 F1 B1 B1 .  .
    """
    program = pipeline(2, 2, Schedule.ONE_F_ONE_B, forward_ns=1, backward_ns=2)
    acts = [(program.actors[one.actor], one) for one in reference.run(program, 1).timeline.records]
    spans = {
        (actor.name, one.number): (one.start_ns, one.end_ns) for actor, one in acts if actor.kind is ActKind.COMPUTE
    }
    assert spans == {
        ("F0", 0): (0, 1), ("F1", 0): (1, 2), ("F0", 1): (1, 2), ("B1", 0): (2, 4), ("B0", 0): (4, 6),
        ("F1", 1): (4, 5), ("B1", 1): (5, 7), ("B0", 1): (7, 9),
    }  # fmt: skip


def test_a_hang_names_the_cycle() -> None:
    registers = (Register("a", 0, (1,), DType.FLOAT32, 1), Register("b", 0, (1,), DType.FLOAT32, 1))
    actors = (
        Actor("x", 0, ActKind.COMPUTE, reads=(Port(1),), writes=(Port(0),), work=Work(1)),
        Actor("y", 0, ActKind.COMPUTE, reads=(Port(0),), writes=(Port(1),), work=Work(1)),
    )
    program = Program(1, registers, actors, (Stream(0, "s", (0,)), Stream(0, "t", (1,))), {})
    with pytest.raises(DeadlockError, match="x"):
        reference.run(program, 1)


def test_it_drives_the_protocol_and_the_compiled_engine_does_not() -> None:
    """As README says."""
    folder = Path(reference.__file__).parent
    drives = {
        name: any(
            isinstance(node, ast.ImportFrom) and node.module == "strategy.program.protocol" and
            any(alias.name == "Protocol" for alias in node.names)
            for node in ast.walk(ast.parse((folder / f"{name}.py").read_text()))
        )
        for name in ("reference", "engine", "machine")
    }  # fmt: skip
    assert drives == {"reference": True, "engine": False, "machine": False}
