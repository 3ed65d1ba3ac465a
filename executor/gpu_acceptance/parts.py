"""The parts of acceptance in their order, and how they run: whatever happens in one, the next runs too."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from executor.gpu_acceptance.array_code import array_code
from executor.gpu_acceptance.bench import Bench
from executor.gpu_acceptance.beside_host import beside_host
from executor.gpu_acceptance.collectives import collectives
from executor.gpu_acceptance.commands import faults, plans, profile, training
from executor.gpu_acceptance.endurance import endurance
from executor.gpu_acceptance.experts import experts
from executor.gpu_acceptance.kernels import attention, kernels, products
from executor.gpu_acceptance.killed import killed
from executor.gpu_acceptance.machine import build, environment
from executor.gpu_acceptance.outcome import (
    Figures,
    LeftOut,
    PartFailed,
    PartOutcome,
    PartStatus,
    read_outcomes,
    write_outcomes,
)
from executor.gpu_acceptance.prediction import prediction
from executor.gpu_acceptance.pytorch import pytorch
from strategy.base.errors import SbplanError

LIMIT_S = 470.0
"""Of one part."""
PARTS: Mapping[str, Callable[[Bench], Figures]] = {
    part.__name__: part
    for part in (
        environment,
        build,
        kernels,
        products,
        attention,
        experts,
        array_code,
        collectives,
        plans,
        beside_host,
        training,
        faults,
        killed,
        endurance,
        profile,
        prediction,
        pytorch,
    )
}

RunPart = Callable[[str], PartOutcome]


def outcome_of(name: str, bench: Callable[[], Bench]) -> PartOutcome:
    """Run a part here; whatever goes wrong in it is its outcome."""
    begin = time.perf_counter()
    status, problem, figures = PartStatus.SUCCEEDED, "", "{}"
    try:
        figures = json.dumps(PARTS[name](bench()))
    except LeftOut as reason:
        status, problem = PartStatus.LEFT_OUT, str(reason)
    except PartFailed as failure:
        status, problem, figures = PartStatus.FAILED, str(failure), json.dumps(dict(failure.figures))
    except SbplanError as error:
        status, problem = PartStatus.FAILED, str(error)
    except Exception as error:  # noqa: BLE001 - a part must not hide the next
        status, problem = PartStatus.FAILED, f"{type(error).__name__}: {error}"
        figures = json.dumps({"traceback": traceback.format_exc()})
    return PartOutcome(status, time.perf_counter() - begin, problem, figures)


def run_parts(out: Path, wanted: Sequence[str], run: RunPart, tell: Callable[[str], None]) -> dict[str, PartOutcome]:
    """Run parts that have not passed yet, and write what they show after each."""
    outcomes = read_outcomes(out)
    for name in wanted:
        if name in outcomes and outcomes[name].succeeded:
            tell(f"{name}: succeeded before")
            continue
        outcomes[name] = found = run(name)
        write_outcomes(out, outcomes)
        tell(f"{name}: {found.status} in {found.seconds:.0f} s{f': {found.problem}' if found.problem else ''}")
    return outcomes
