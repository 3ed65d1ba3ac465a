"""Saves copy beside training, and stop it where an update waits for its copy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.saving import with_saves
from simulator.simulate import simulate
from strategy.cost.cost import CostModel, port_rates
from strategy.hardware.cluster import Host
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream, Work
from strategy.sbp.placement import Space
from strategy.sbp.tensor import DType
from tests.support.small_plans import cluster

FORWARD_NS, UPDATE_NS = 1000, 100


def cost(nbytes_per_ns: float) -> CostModel:
    return CostModel(replace(cluster(1), host=Host(2**40, 1e11, 1e12, nbytes_per_ns * 1e9, 0.0)), {})


def training(*spaces: Space) -> Program:
    """A step reads a variable of 4,000 bytes per space in forward, and rewrites it in its update."""
    registers = tuple(Register(f"w{i}", 0, (1000,), DType.FLOAT32, initial=1, space=s) for i, s in enumerate(spaces))
    ports = tuple(Port(index) for index in range(len(registers)))
    actors = (
        Actor("forward", 0, ActKind.COMPUTE, ports, work=Work(FORWARD_NS)),
        Actor("update", 0, ActKind.COMPUTE, writes=ports, work=Work(UPDATE_NS)),
    )
    return Program(1, registers, actors, (Stream(0, "compute", (0, 1)),), port_rates(cost(1.0).cluster, 1))


def step_ns(program: Program) -> float:
    return round(simulate(program, steps=3).step_time_s * 1e9)


@pytest.mark.parametrize(("nbytes_per_ns", "stall_ns"), [(40.0, 0), (4.0, 0), (2.0, 1000), (1.0, 3000)])
def test_a_save_stops_training_for_what_forward_does_not_hide(nbytes_per_ns: float, stall_ns: int) -> None:
    program = replace(training(Space.DEVICE), resources=port_rates(cost(nbytes_per_ns).cluster, 1))
    assert step_ns(program) == FORWARD_NS + UPDATE_NS
    saving = with_saves(program, cost(nbytes_per_ns))
    assert step_ns(saving) == pytest.approx(FORWARD_NS + UPDATE_NS + stall_ns, abs=2)


def test_what_is_on_the_host_is_not_copied() -> None:
    assert with_saves(training(Space.HOST), cost(1.0)) == training(Space.HOST)
    both = with_saves(training(Space.DEVICE, Space.HOST), cost(1.0))
    assert [actor.reads for actor in both.actors if actor.name == "save"] == [(Port(0),)]
    assert step_ns(both) == pytest.approx(4000 + UPDATE_NS, abs=2)
