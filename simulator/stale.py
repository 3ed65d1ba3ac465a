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
from dataclasses import dataclass, field, replace

from strategy.base.errors import InputError
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream, Work
from strategy.sbp.tensor import DType


def pipe_dream_program(
    stages: int, num_micro_batches: int, *, forward_ns: int, backward_ns: int, versions: int | None = None
) -> Program:
    """A whole run of PipeDream as one step; messages and updates take no time. A version of parameters is 4 bytes.

    Args:
        stages: stage s on rank s.
        num_micro_batches: of the run.
        forward_ns: of one micro-batch on one stage.
        backward_ns: likewise.
        versions: most versions that a stage holds; by default as many as keep it busy, `stages` on the first.

    Raises:
        InputError: no stages, no micro-batches or no versions.
    """
    versions = stages if versions is None else versions
    for name, got in (("stages", stages), ("micro-batches", num_micro_batches), ("versions", versions)):
        if got < 1:
            raise InputError("not possible", where=name, got=got, expected="at least 1")
    held = [min(versions, stages - s) for s in range(stages)]
    build = _Build(num_micro_batches)
    reads: dict[str, list[int]] = {f"{phase}{s}": [] for phase in "FB" for s in range(stages)}
    writes: dict[str, list[int]] = {name: [] for name in reads}
    for s in range(stages - 1):
        for phase, (source, target) in (("F", (s, s + 1)), ("B", (s + 1, s))):
            left, arrived = build.message(f"{phase}{source} to {target}", source, target, blocks=max(held))
            writes[f"{phase}{source}"].append(left)
            reads[f"{phase}{target}"].append(arrived)
    for s in range(stages):
        weights = build.register(f"weights {s}", s, blocks=held[s], initial=held[s], size=1)
        stash, gradient = build.register(f"stash {s}", s, blocks=held[s]), build.register(f"gradient {s}", s)
        forward = build.act(f"F{s}", s, forward_ns, [weights, *reads[f"F{s}"]], [stash, *writes[f"F{s}"]])
        backward = build.act(f"B{s}", s, backward_ns, [weights, stash, *reads[f"B{s}"]], [gradient, *writes[f"B{s}"]])
        update = build.act(f"U{s}", s, 0, [gradient], [weights])
        build.streams.append(build.by_priority(s, (forward, backward, update)))
    return build.program(stages)


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
    build, versions = _Build(num_steps), staleness + 1
    for w, time_ns in enumerate(step_ns):
        weights = build.register(f"weights {w}", w, blocks=versions, initial=versions, size=1)
        update = build.register(f"update {w}", w, blocks=versions)
        step = build.act(f"step {w}", w, time_ns, [weights], [update])
        exchange = build.act(f"exchange {w}", w, exchange_ns, [update], [weights], ActKind.ALL_REDUCE, rendezvous=0)
        build.streams += [Stream(w, "compute", (step,) * num_steps), Stream(w, "comm", (exchange,) * num_steps)]
    return build.program(len(step_ns))


@dataclass(slots=True)
class _Build:
    """A program whose every actor acts `acts` times."""

    acts: int
    registers: list[Register] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    messages: int = 0

    def register(self, name: str, rank: int, *, blocks: int = 1, initial: int = 0, size: int = 0) -> int:
        self.registers.append(Register(name, rank, (size,), DType.FLOAT32, blocks=blocks, initial=initial))
        return len(self.registers) - 1

    def act(
        self,
        name: str,
        rank: int,
        time_ns: int,
        reads: Sequence[int],
        writes: Sequence[int],
        kind: ActKind = ActKind.COMPUTE,
        *,
        rendezvous: int | None = None,
    ) -> int:
        ports = tuple(map(Port, reads)), tuple(map(Port, writes))
        self.actors.append(Actor(name, rank, kind, *ports, self.acts, rendezvous=rendezvous, work=Work(time_ns)))
        return len(self.actors) - 1

    def by_priority(self, rank: int, actors: Sequence[int]) -> Stream:
        """A stream without a sequence: of its actors that are ready, the later named goes first."""
        for priority, actor in enumerate(actors):
            self.actors[actor] = replace(self.actors[actor], priority=priority)
        return Stream(rank, "compute", tuple(actors), dynamic=True)

    def message(self, name: str, source: int, target: int, *, blocks: int) -> tuple[int, int]:
        """The registers at both ends of a transfer that takes no time."""
        left = self.register(f"{name} leaves", source, blocks=2)
        arrived = self.register(f"{name} arrives", target, blocks=blocks)
        for rank, reads, writes in ((source, [left], []), (target, [], [arrived])):
            end = self.act(name, rank, 0, reads, writes, ActKind.TRANSFER, rendezvous=self.messages)
            self.streams.append(Stream(rank, name, (end,) * self.acts))
        self.messages += 1
        return left, arrived

    def program(self, ranks: int) -> Program:
        """What was built."""
        found = (tuple(self.registers), tuple(self.actors), tuple(self.streams))
        return Program(ranks, *found, num_micro_batches=self.acts, tokens_per_step=self.acts)
