"""Step reports: what the host is told of every step, copies of the last pieces of some registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from executor.runtime.kernels.base import Kernels
from executor.runtime.registers import Registers
from executor.runtime.transport.base import HostArray
from strategy.program.program import Program
from strategy.program.protocol import Act

Reports = Mapping[str, HostArray]
"""Register name -> a copy of the last piece of a step."""


class StepReports:
    """Of registers of one rank, by name; on a device with streams, copies are ordered behind the acts that write.

    `steps_ahead` are the steps that may be under way there at once.
    """

    def __init__(
        self, program: Program, registers: Registers, kernels: Kernels, names: Sequence[str], steps_ahead: int
    ) -> None:
        self._program, self._registers, self._kernels = program, registers, kernels
        self._steps_ahead = steps_ahead
        self._written: dict[int, list[tuple[str, int]]] = {}
        """Actor -> (name, write port) of each register that it writes and that is wanted."""
        wanted = {registers.index(name): name for name in names}
        for index, actor in enumerate(program.actors):
            for position, port in enumerate(actor.writes):
                if port.register in wanted:
                    self._written.setdefault(index, []).append((wanted[port.register], position))
        self.actors = frozenset(self._written)
        """Those of which something is reported."""
        self._buffers: dict[tuple[str, int], HostArray] = {}
        self._found: dict[int, dict[str, HostArray]] = {}

    def make_buffers(self) -> None:
        """Memory of the host for the copies that may be under way."""
        for actor, written in self._written.items():
            for name, _ in written:
                for number in range(self._kept(actor)):
                    if (name, number) not in self._buffers:
                        piece = self._registers.block(self._registers.index(name), 0)
                        self._buffers[name, number] = self._kernels.host_like(piece)

    def order_copies(self, act: Act) -> None:
        """Have what an act writes copied on the current stream, before its block can be written again."""
        for name, piece in self._pieces(act):
            self._kernels.download(piece, self._buffers[name, act.number % self._kept(act.actor)])

    def take(self, step: int, act: Act) -> None:
        """Keep what an act that is done has written."""
        for name, piece in self._pieces(act):
            ordered = self._buffers.get((name, act.number % self._kept(act.actor)))
            if ordered is None:
                host = self._kernels.host_like(piece)
                self._kernels.download(piece, host)
                self._kernels.wait()
            self._found.setdefault(step, {})[name] = host if ordered is None else ordered.copy()

    def of_step(self, step: int) -> Reports:
        """All that is known of a step that has ended, once."""
        return self._found.pop(step, {})

    def _pieces(self, act: Act) -> list[tuple[str, HostArray]]:
        block, index, blocks = self._registers.block, self._registers.index, act.write_blocks
        return [(name, block(index(name), blocks[port])) for name, port in self._written.get(act.actor, ())]

    def _kept(self, actor: int) -> int:
        """Acts of an actor that may be under way at once."""
        return self._program.actors[actor].acts_per_step * self._steps_ahead
