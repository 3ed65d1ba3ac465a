"""Steps in the logs of trainers: Megatron-LM (and what is built on it, such as Primus), torchtitan, NeMo; in traces.

| trainer | line | seconds of a step |
|---|---|---|
| Megatron-LM | `iteration 3/ 20 | ... elapsed time per iteration (ms): 32208.7` | as it says; of `a/b` (b a mean), a |
| torchtitan | `step: 10 ... tps: 9,982` | tokens of a data-parallel rank over tps, times the ranks that share them |
| NeMo | `train_step_timing in s: [39.03, 25.68, ...]` | as it says: means of the last few steps |
| any, by PyTorch's profiler | `ProfilerStep#3` in a trace (.json, .json.gz) | as `profiler_trace.py` reads it |

torchtitan prints its batch, its sequence and its degrees once, before the first step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from experiments.logs.profiler_trace import is_trace, read_steps_s
from strategy.base.errors import InputError

FEWEST_STEPS = 1
_NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
_MEGATRON = re.compile(rf"iteration\s+(\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\): {_NUMBER}")
_TITAN_STEP = re.compile(rf"step:\s*(\d+)\s+loss:.*?\btps: {_NUMBER}")
_TITAN_BATCH = re.compile(r"local batch size (\d+),.*?gradient accumulation steps (\d+), sequence length (\d+)")
_TITAN_DEGREES = re.compile(r"with parallelism: (.+)")
_TITAN_SHARING = re.compile(r"\b(?:tp|cp|pp)=(\d+)")
_NEMO = re.compile(r"train_step_timing in s: \[([\d., ]+)\]")


@dataclass(frozen=True, slots=True)
class TrainerLog:
    """What a log says of its steps: number of a step -> its seconds."""

    path: Path
    trainer: str
    steps_s: Mapping[int, float]

    @property
    def step_time_s(self) -> float:
        """Median of the later half of the steps that are told: trainers compile and allocate in the first ones."""
        later = sorted(self.steps_s)[len(self.steps_s) // 2 :]
        return median(self.steps_s[step] for step in later)


def read_trainer_log(path: Path) -> TrainerLog:
    """The steps of a log, or of a trace.

    Raises:
        InputError: no such file, or none with steps of a trainer that is known.
    """
    if is_trace(path):
        return TrainerLog(path, "PyTorch profiler", read_steps_s(path))
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    for trainer, steps_of in _READERS.items():
        found = {step: seconds for step, seconds in steps_of(text).items() if math.isfinite(seconds) and seconds > 0}
        if len(found) >= FEWEST_STEPS:
            return TrainerLog(path, trainer, found)
    raise InputError("no steps of a trainer that is known", where=str(path), expected=f"a log of {', '.join(_READERS)}")


def _figure(text: str) -> float:
    return float(text.replace(",", ""))


def _megatron(text: str) -> dict[int, float]:
    return {int(step): _figure(milliseconds) / 1e3 for step, milliseconds in _MEGATRON.findall(text)}


def _torchtitan(text: str) -> dict[int, float]:
    batch, degrees = _TITAN_BATCH.search(text), _TITAN_DEGREES.search(text)
    if batch is None or degrees is None:
        return {}
    tokens = math.prod(map(int, batch.groups()))
    sharing = math.prod(map(int, _TITAN_SHARING.findall(degrees[1])))
    rates = {int(step): _figure(rate) for step, rate in _TITAN_STEP.findall(text)}
    return {step: tokens / sharing / rate for step, rate in rates.items() if rate > 0}


def _nemo(text: str) -> dict[int, float]:
    lists = _NEMO.findall(text)
    return dict(enumerate(map(float, lists[-1].split(",")), 1)) if lists else {}


_READERS: Mapping[str, Callable[[str], dict[int, float]]] = {
    "Megatron-LM": _megatron,
    "torchtitan": _torchtitan,
    "NeMo": _nemo,
}
