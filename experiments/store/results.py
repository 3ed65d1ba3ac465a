"""Results: the finished experiments in a run store, by which a suite goes on and figures are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.command.console import say
from experiments.store.store import RunStatus, RunStore
from strategy.base.errors import InputError

VERB = "run"


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """One finished experiment: the id of its run, the suite and the experiment as JSON has it, and what it found."""

    run: int
    suite: str
    experiment: Mapping[str, Any]
    summary: Mapping[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        """Of the experiment."""
        return str(self.experiment["name"])

    @property
    def kind(self) -> str:
        """Of the experiment."""
        return str(self.experiment["kind"])


def read_results(store: RunStore) -> tuple[ExperimentResult, ...]:
    """All of them, oldest first; what is damaged is told in one message and left out.

    Raises:
        InputError: there is no store.
    """
    stored = store.read()
    found, damaged = [], list(stored.damaged)
    for run in stored.runs:
        if run.verb != VERB or run.status is not RunStatus.DONE:
            continue
        try:
            inputs = run.inputs()
        except InputError:
            damaged.append(run.id)
            continue
        suite, experiment = inputs.get("suite"), inputs.get("experiment")
        if not isinstance(suite, str) or not isinstance(experiment, dict) or not {"name", "kind"} <= experiment.keys():
            damaged.append(run.id)
            continue
        found.append(ExperimentResult(run.id, suite, experiment, run.summary, run.folder))
    if damaged:
        numbers = " ".join(map(str, damaged))
        say(f"warning: damaged runs are left out: {numbers}; 'sbplan runs delete {numbers}' removes them")
    return tuple(found)
