"""A training by the GPU backend over stand-ins, kernel by kernel on the host: what NumPy's backend computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from executor.runtime.kernels.gpu.device import DeviceActs
from executor.runtime.kernels.gpu.launch import Launch
from executor.runtime.kernels.gpu.loader import LoadedKernels
from executor.runtime.transport.base import lanes_of
from executor.runtime.transport.loopback import LoopbackHub
from executor.train import Trainer
from strategy.base.errors import EnvironmentLacks
from strategy.graph.ops.base import Call, OpDef
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import REPORT, Training
from strategy.plan.plan import Plan
from tests.campaigns.transparency import on_one_device
from tests.executor.runtime.kernels.gpu.test_loader import cubins, open_backend
from tests.support.cuda_on_host.device import build, run
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, corpus, deduced_plan, lowered, request

__all__ = ["cubins"]
STEPS = 2
"""The second is captured as graphs; their replay does nothing on the host."""
SCALARS = {"clip_scale", "learning_rate", "report", "history_amax", "accumulate_max", "record_amax"}
"""Ops that the array module runs: a few figures each."""
MODEL = GptConfig(layers=1, width=32, heads=2, sequence=16, vocabulary=24)


def plan_of(precision: Precision, *, backend: str = "cupy") -> Plan:
    training = Training(global_batch=2, num_micro_batches=1, precision=precision, seed=3, lr=1e-2)
    return deduced_plan(request(1, training, model=MODEL, backend=backend), config_of(training), ("data", "tensor"))


def losses_of(plan: Plan, kernels: Any, *, steps: int) -> list[float]:
    """The losses of a training by one rank."""
    found, program = list[float](), lowered(plan)

    class Listener(Trainer):
        def _on_step(self, step: int, reports: Mapping[str, NDArray[Any]]) -> None:
            super()._on_step(step, reports)
            found.append(float(reports[REPORT][0] / reports[REPORT][1]))

    transport = LoopbackHub(1, lanes_of(program)).transport(0)
    Listener(plan, transport, kernels, corpus(MODEL.vocabulary), program=program).worker.run(steps=steps)
    return found


def on_host(launches: Counter[str]) -> Callable[[LoadedKernels, Launch], Callable[[int], None]]:
    """Binds launches to the same kernels on the host, and counts them."""

    def bind(_: LoadedKernels, launch: Launch) -> Callable[[int], None]:
        def issue(number: int) -> None:
            arguments = list(launch.arguments)
            for position, argument in launch.by_number:
                arguments[position] = argument(number)
            launches[launch.kernel] += 1
            run(build(launch.element), [replace(launch, arguments=tuple(arguments))])

        return issue

    return bind


@pytest.mark.parametrize("precision", long_but([Precision.BF16, Precision.FP8_CURRENT, Precision.FP8_DELAYED], 0))
def test_losses_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch, cubins: Path, precision: Precision) -> None:
    plan, launches, by_array_code = plan_of(precision), Counter[str](), set[str]()
    given = DeviceActs._by_array_code

    def noted(acts: DeviceActs, definition: OpDef, call: Call) -> None:
        by_array_code.add(definition.kind)
        given(acts, definition, call)

    monkeypatch.setattr(LoadedKernels, "bind", on_host(launches))
    monkeypatch.setattr(DeviceActs, "_by_array_code", noted)
    kernels, _ = open_backend(monkeypatch, cubins)
    losses = losses_of(plan, kernels, steps=STEPS)
    assert losses == pytest.approx(on_one_device(plan, steps=STEPS)[1], rel=1e-5)
    assert by_array_code <= SCALARS
    coded = {"quantize_e4m3", "quantize_e5m2", "arrange_codes"}
    assert coded & set(launches) == (coded if precision.scaling else set())
    assert ("amax" in launches) is (precision is Precision.FP8_CURRENT)


def test_codes_that_no_kernel_takes_are_refused(monkeypatch: pytest.MonkeyPatch, cubins: Path) -> None:
    kernels, _ = open_backend(monkeypatch, cubins)
    with pytest.raises(EnvironmentLacks, match=r"no kernel for quantize_blocks of float8_e4m3fn.*precision=bf16"):
        losses_of(plan_of(Precision.FP8_BLOCK, backend="numpy"), kernels, steps=1)
