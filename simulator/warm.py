"""Compiles the event engine and the trace once, so that the first plan does not wait: `python -m simulator.warm`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from simulator.simulate import simulate
from simulator.trace import TracedRun, write_trace
from strategy.program.program import ActKind, Actor, Program, Stream, Work


def warm() -> None:
    """Simulates two acts that share a port, and writes their trace."""
    actors = tuple(
        Actor(f"send{stream}", 0, ActKind.TRANSFER, work=Work(5, (("intra:0", 1000),))) for stream in range(2)
    )
    streams = tuple(Stream(0, f"comm{actor}", (actor,)) for actor in range(2))
    program = Program(1, (), actors, streams, {"intra:0": 1e9})
    run = simulate(program).run
    with tempfile.TemporaryDirectory() as folder:
        write_trace(Path(folder) / "trace.json.gz", [TracedRun.simulated(program, run.acts)])


if __name__ == "__main__":
    warm()
