"""Faults: what makes ranks uneven that the plan takes to be alike. Slow ranks, slow links, acts that vary at random."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.acts import Integers
from simulator.conservation import act_alone_ns
from simulator.engine import Jitter
from strategy.cost.cost import port_name
from strategy.program.program import ActKind, Program, Work


def with_straggler(program: Program, rank: int, factor: float) -> Program:
    """The program with every computation of one rank `factor` times as long."""

    def slower(work: Work) -> Work:
        demands = tuple((name, round(factor * nbytes)) for name, nbytes in work.demands)
        return Work(round(factor * work.latency_ns), demands)

    actors = tuple(
        replace(actor, work=slower(actor.work)) if actor.rank == rank and actor.kind is ActKind.COMPUTE else actor
        for actor in program.actors
    )
    return replace(program, actors=actors)


def with_slow_links(program: Program, rank: int, factor: float) -> Program:
    """The program with every byte that a rank sends to others `factor` times as long on its links."""
    slow = {port_name(level, rank) for level in ("intra", "inter")}
    resources = {name: rate / factor if name in slow else rate for name, rate in program.resources.items()}
    return replace(program, resources=resources)


def random_jitter(program: Program, share: float, seed: int) -> Jitter:
    """Every act takes longer by a random part, even between 0 and `share`, of its time alone; same seed, same parts."""
    most_ns = share * np.array([act_alone_ns(program, actor) for actor in program.actors], dtype=np.float64)

    def extra_ns(actors: Integers, _numbers: Integers) -> Integers:
        return np.rint(np.random.default_rng(seed).random(len(actors)) * most_ns[actors]).astype(np.int64)

    return extra_ns
