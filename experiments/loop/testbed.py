"""Testbed: the ranks that plans are timed on, and what the ranks' kernels do."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from executor.supervision.launch import launch
from experiments.machine.emulated_nodes import write_mpiexec
from strategy.base.errors import RunError

KernelsName = Literal["numpy", "timed-wait"]
"""Of what ranks run ops by: for real, or by waiting as long as their work takes at a fixed rate (`timed_wait`)."""


@dataclass(frozen=True, slots=True)
class Testbed:
    """Ranks of this machine.

    Attributes:
        ranks: how many.
        nodes: emulated ones (`experiments.machine.emulated_nodes`) that share them evenly; 1: this machine as it is.
        gbit_per_s: of every emulated node's cable.
        kernels: what ranks run ops by.
    """

    ranks: int
    nodes: int = 1
    gbit_per_s: float = 1.0
    kernels: KernelsName = "numpy"

    def run(self, module: str, arguments: Sequence[str], folder: Path) -> None:
        """Run a module of this installation on all ranks; what the job says of itself stays in `folder`.

        Raises:
            RunError: it failed.
            EnvironmentLacks: nodes cannot be emulated here.
        """
        folder.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-P", "-m", module, *arguments, "--kernels", self.kernels]
        emulated = self.nodes > 1
        mpiexec = write_mpiexec(folder, nodes=self.nodes, gbit_per_s=self.gbit_per_s) if emulated else None
        code = launch(argv, self.ranks, folder=folder, mpiexec=mpiexec)
        if code > 128:  # the launcher took the signal for its ranks; it was meant for us, too
            signal.raise_signal(signal.Signals(code - 128))
        if code:
            raise RunError(f"{module} on {self.ranks} ranks ended with code {code}; see {folder}")
