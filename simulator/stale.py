"""Staleness: training that goes on with parameters that lack the newest updates, for study: simulated, never run.

Plans wait for every update, so that all of them train alike. What that costs, and what not waiting holds and misses,
follows from register counts alone: a register of parameters that begins with v pieces lets v passes begin before the
first update is back, and holds v versions.

PipeDream (Narayanan et al. 2019, doi:10.1145/3341301.3359646, sections 3.2 and 3.3): 1F1B without a flush. A stage
updates its parameters after every backward pass and keeps the versions that its micro-batches in flight began with.
What passes stage s of p lacks the last p - s - 1 updates; with one version nothing is stale and nothing overlaps.

Stale synchronous data parallelism (Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel
parameter server"): no worker is more than s steps ahead of another, 0 being bulk synchronous. Each step begins with
the parameters after all updates but the last s, which is what registers give; Ho's workers may see newer ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.stage_times import StageTimes
from strategy.base.errors import InputError
from strategy.program.builder import ProgramBuilder
from strategy.program.program import ActKind, Program


def pipe_dream_program(stages: Sequence[StageTimes], num_micro_batches: int, *, versions: int | None = None) -> Program:
    """A whole run of PipeDream as one step. A version of parameters is 4 bytes.

    Args:
        stages: times of stage s, which is on rank s.
        num_micro_batches: of the run.
        versions: most versions that a stage holds; by default as many as keep it busy, one per stage on the first.

    Raises:
        InputError: no stages, no micro-batches or no versions.
    """
    count, m = len(stages), num_micro_batches
    versions = count if versions is None else versions
    for what, got in (("stages", count), ("micro-batches", m), ("versions", versions)):
        if got < 1:
            raise InputError("not possible", where=what, got=got, expected="at least 1")
    held = pipe_dream_versions(count, versions)
    build = ProgramBuilder()
    reads: dict[str, list[int]] = {f"{phase}{s}": [] for phase in "FB" for s in range(count)}
    writes: dict[str, list[int]] = {name: [] for name in reads}
    for s in range(count - 1):
        for phase, (source, target) in (("F", (s, s + 1)), ("B", (s + 1, s))):
            name = f"{phase}{source} to {target}"
            left = build.register(f"{name} leaves", source, blocks=2)
            arrived = build.register(f"{name} arrives", target, blocks=max(held))
            build.channel(name, left, arrived, stages[s].message_ns, acts=m)
            writes[f"{phase}{source}"].append(left)
            reads[f"{phase}{target}"].append(arrived)
    for s, times in enumerate(stages):
        weights = build.register(f"weights {s}", s, blocks=held[s], initial=held[s], elements=1)
        stash, gradient = build.register(f"stash {s}", s, blocks=held[s]), build.register(f"gradient {s}", s)
        forward, backward = f"F{s}", f"B{s}"
        inputs, outputs = [weights, *reads[forward]], [stash, *writes[forward]]
        # Without a sequence: of the actors that are ready, the one of highest priority acts.
        turns = [build.act(forward, s, times.forward_ns, reads=inputs, writes=outputs, acts=m, priority=0)]
        inputs, outputs = [weights, stash, *reads[backward]], [gradient, *writes[backward]]
        turns.append(build.act(backward, s, times.backward_ns, reads=inputs, writes=outputs, acts=m, priority=1))
        turns.append(build.act(f"U{s}", s, times.update_ns, reads=[gradient], writes=[weights], acts=m, priority=2))
        build.stream(s, "compute", turns, dynamic=True)
    return build.freeze(count, num_micro_batches=m, tokens_per_step=m)


def pipe_dream_versions(stages: int, versions: int | None = None) -> list[int]:
    """By stage, the versions of its parameters that it holds: one per micro-batch in flight, at most `versions`."""
    return [min(stages if versions is None else versions, stages - s) for s in range(stages)]


def stale_workers_program(step_ns: Sequence[int], num_steps: int, staleness: int, *, exchange_ns: int = 0) -> Program:
    """A whole run of data-parallel workers as one step; each holds `staleness` + 1 versions of 4 bytes.

    Args:
        step_ns: time of every worker for one step; a simulation may add to each by its jitter.
        num_steps: of the run.
        staleness: steps whose updates a step may lack; 0 waits for all.
        exchange_ns: time in which the updates of a step are added up and come back.

    Raises:
        InputError: no workers, no steps, or a negative staleness.
    """
    for name, got, least in (("workers", len(step_ns), 1), ("steps", num_steps, 1), ("staleness", staleness, 0)):
        if got < least:
            raise InputError("not possible", where=name, got=got, expected=f"at least {least}")
    build, versions = ProgramBuilder(), staleness + 1
    together = build.meeting()
    for w, time_ns in enumerate(step_ns):
        weights = build.register(f"weights {w}", w, blocks=versions, initial=versions, elements=1)
        update = build.register(f"update {w}", w, blocks=versions)
        step = build.act(f"step {w}", w, time_ns, reads=[weights], writes=[update], acts=num_steps)
        exchange = build.act(
            f"exchange {w}", w, exchange_ns, reads=[update], writes=[weights], acts=num_steps,
            kind=ActKind.ALL_REDUCE, meeting=together,
        )  # fmt: skip
        build.stream(w, "compute", (step,) * num_steps)
        build.stream(w, "comm", (exchange,) * num_steps)
    return build.freeze(len(step_ns), num_micro_batches=num_steps, tokens_per_step=num_steps)
