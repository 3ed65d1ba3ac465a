"""Pipelines laid out by hand, for tests: one forward and one backward actor per stage, transfers that take no time."""

from __future__ import annotations

from strategy.program import ActKind, Actor, Port, Program, Register, Stream, Work
from strategy.tensor import DType


def pipeline(
    stages: int, micro_batches: int, schedule: str, *, forward_ns: int = 1, backward_ns: int = 1, transfer_ns: int = 0
) -> Program:
    """Stage s on rank s. Only the stash (what backward needs of forward) has bytes: 4 per micro-batch.

    Args:
        stages: number of ranks.
        micro_batches: acts per step of every actor.
        schedule: "gpipe" (all forward, then all backward; a stash of all micro-batches) or "1f1b" (stage s starts
            `stages` - s micro-batches before it ends the first; that many fit in its stash).
        forward_ns: of one micro-batch on one stage.
        backward_ns: likewise.
        transfer_ns: between two stages.
    """
    build = _Build(micro_batches, transfer_ns)
    caps = [micro_batches if schedule == "gpipe" else min(stages - s, micro_batches) for s in range(stages)]
    arrives: list[int | None] = [None] * stages
    returns: list[int | None] = [None] * stages
    leaves: list[int | None] = [None] * stages
    goes_back: list[int | None] = [None] * stages
    for s in range(stages - 1):
        leaves[s], arrives[s + 1] = build.channel("activation", s, s + 1)
        goes_back[s + 1], returns[s] = build.channel("gradient", s + 1, s)
    for s in range(stages):
        stash = build.register("stash", s, blocks=caps[s], size=1)
        f = build.compute("F", s, [arrives[s]], [stash, leaves[s]], forward_ns)
        b = build.compute("B", s, [stash, returns[s]], [goes_back[s]], backward_ns)
        ahead = caps[s]
        turns = [f] * ahead + [b, f] * (micro_batches - ahead) + [b] * ahead
        build.streams.append(Stream(s, "compute", tuple(turns)))
    return Program(
        ranks=stages,
        registers=tuple(build.registers),
        actors=tuple(build.actors),
        streams=tuple(build.streams),
        num_micro_batches=micro_batches,
        tokens_per_step=micro_batches,
    )


class _Build:
    def __init__(self, micro_batches: int, transfer_ns: int) -> None:
        self.micro_batches = micro_batches
        self.transfer_ns = transfer_ns
        self.registers: list[Register] = []
        self.actors: list[Actor] = []
        self.streams: list[Stream] = []
        self.rendezvous = 0

    def register(self, name: str, rank: int, *, blocks: int, size: int) -> int:
        self.registers.append(Register(f"{name}{rank}", rank, (size,), DType.FLOAT32, blocks=blocks))
        return len(self.registers) - 1

    def compute(self, name: str, rank: int, reads: list[int | None], writes: list[int | None], time_ns: int) -> int:
        sources = tuple(Port(register) for register in reads if register is not None)
        targets = tuple(Port(register) for register in writes if register is not None)
        m = self.micro_batches
        actor = Actor(f"{name}{rank}", rank, ActKind.COMPUTE, sources, targets, m, work=Work(time_ns))
        self.actors.append(actor)
        return len(self.actors) - 1

    def channel(self, name: str, source: int, target: int) -> tuple[int, int]:
        """A register to write on rank `source` and one to read on rank `target`, each with its own channel stream."""
        kind, number, m, work = ActKind.TRANSFER, self.rendezvous, self.micro_batches, Work(self.transfer_ns)
        leaves = self.register(f"{name} leaves ", source, blocks=2, size=0)
        arrives = self.register(f"{name} arrives ", target, blocks=2, size=0)
        send = Actor(f"send {name} {source}", source, kind, (Port(leaves),), (), m, rendezvous=number, work=work)
        receive = Actor(f"receive {name} {target}", target, kind, (), (Port(arrives),), m, rendezvous=number, work=work)
        for actor in (send, receive):
            self.actors.append(actor)
            self.streams.append(Stream(actor.rank, actor.name, (len(self.actors) - 1,) * m))
        self.rendezvous += 1
        return leaves, arrives
