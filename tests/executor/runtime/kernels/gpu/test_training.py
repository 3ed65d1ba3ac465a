"""A training by the GPU backend over stand-ins, kernel by kernel on the host: what NumPy's backend computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.runtime.kernels.gpu.device import DeviceActs
from executor.runtime.kernels.gpu.launch import Launch
from executor.runtime.kernels.gpu.loader import LoadedKernels
from executor.runtime.transport.base import lanes_of
from executor.runtime.transport.loopback import LoopbackHub
from executor.train import Trainer
from strategy.base.errors import EnvironmentLacks
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, OpDef
from strategy.models.gpt import GptConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import REPORT, Training
from strategy.plan.plan import Plan
from strategy.sbp.tensor import DType
from tests.campaigns.transparency import on_one_device
from tests.executor.runtime.kernels.gpu.test_codes import call_of
from tests.executor.runtime.kernels.gpu.test_loader import cubins, open_backend
from tests.support.cuda_on_host.device import build, run
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, corpus, deduced_plan, lowered, request

__all__ = ["cubins"]
STEPS = 2
"""The second is captured as graphs; their replay does nothing on the host."""
SCALARS = {"clip_scale", "learning_rate", "report", "history_amax", "accumulate_max", "record_amax"}
"""Ops that the array module runs: a few figures each."""
_OF_TENSORS = {"quantize_e4m3", "quantize_e5m2", "arrange_codes"}
_OF_BLOCKS = {"block_scales", "block_codes_e4m3", "block_figures_e4m3"}
CODES_OF = {
    Precision.FP8_CURRENT: _OF_TENSORS,
    Precision.FP8_DELAYED: _OF_TENSORS,
    Precision.FP8_BLOCK: _OF_BLOCKS,
    Precision.MXFP8: _OF_BLOCKS,
    Precision.NVFP4: {"block_scales", "block_codes_e2m1", "block_figures_e2m1"},
}
CODED = set[str]().union(*CODES_OF.values())
"""Kernels of codes, all of them and by recipe."""
MODEL = GptConfig(layers=1, width=32, heads=2, sequence=16, vocabulary=24)


def plan_of(precision: Precision) -> Plan:
    """Blocks are planned for cores: the cluster's GPU has no rate for them."""
    backend = "numpy" if precision in (Precision.FP8_BLOCK, Precision.MXFP8, Precision.NVFP4) else "cupy"
    training = Training(global_batch=2, num_micro_batches=1, precision=precision, seed=3, lr=1e-2)
    model = replace(MODEL, sequence=32) if precision is Precision.MXFP8 else MODEL  # its blocks must divide all dims
    return deduced_plan(request(1, training, model=model, backend=backend), config_of(training), ("data", "tensor"))


def losses_of(plan: Plan, kernels: Any, *, steps: int, hosts: list[frozenset[int]] | None = None) -> list[float]:
    """The losses of a training by one rank; its actors that are the host's are added to `hosts`."""
    found, program = list[float](), lowered(plan)

    class Listener(Trainer):
        def _on_step(self, step: int, reports: Mapping[str, NDArray[Any]]) -> None:
            super()._on_step(step, reports)
            found.append(float(reports[REPORT][0] / reports[REPORT][1]))

    transport = LoopbackHub(1, lanes_of(program)).transport(0)
    worker = Listener(plan, transport, kernels, corpus(MODEL.vocabulary), program=program).worker
    worker.run(steps=steps)
    if hosts is not None and worker.issuer is not None:
        hosts.append(worker.issuer.host)
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


ROUTER = {"top_k", "top_k_grad", "moe_demand", "reduce_mean", "cast", "expand", "full_like", "neg", "scale"}
"""Ops of the choice of experts and of its balance that the array module runs: a few figures of each token."""
ROUTED = {"count_choices", "place_choices", "write_cells", "dispatch_rows", "combine_rows", "inner_rows"}
MULTIPLIED = {"expert_bounds", "grouped_product", "grouped_product_nt", "grouped_product_tn"}


def kinds_by_array_code(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The kinds of ops that array code computes from now on, as they come."""
    kinds, given = set[str](), DeviceActs._by_array_code

    def noted(acts: DeviceActs, definition: OpDef, call: Call) -> None:
        kinds.add(definition.kind)
        given(acts, definition, call)

    monkeypatch.setattr(DeviceActs, "_by_array_code", noted)
    return kinds


@pytest.mark.parametrize(("fused", "steps"), long_but([(True, 1), (True, STEPS), (False, 1)]))
def test_experts_that_drop_nothing_are_kernels_that_no_host_waits_for(
    monkeypatch: pytest.MonkeyPatch, cubins: Path, fused: bool, steps: int
) -> None:
    """Four experts, two of them for each token."""
    training = Training(global_batch=2, precision=Precision.BF16, seed=3, lr=1e-2, fused=fused)
    model = MixtralConfig(1, 32, 2, 1, hidden=24, experts=4, choices=2, sequence=16, vocabulary=MODEL.vocabulary)
    plan = deduced_plan(request(1, training, model=model, backend="cupy"), config_of(training), ("data", "tensor"))
    launches, by_array_code, hosts = Counter[str](), kinds_by_array_code(monkeypatch), list[frozenset[int]]()
    monkeypatch.setattr(LoadedKernels, "bind", on_host(launches))
    kernels, _ = open_backend(monkeypatch, cubins)
    losses = losses_of(plan, kernels, steps=steps, hosts=hosts)
    assert losses == pytest.approx(on_one_device(plan, steps=steps)[1], rel=1e-5)
    assert hosts == [frozenset()]
    assert by_array_code <= SCALARS | ROUTER
    assert {*ROUTED, *MULTIPLIED, "add_n_rows"} <= set(launches)
    assert {one for one in launches if one.startswith("swiglu")} == (
        {"swiglu_rows", "swiglu_grad_rows"} if fused else set()
    )


ROUNDED = dict.fromkeys((Precision.FP8_CURRENT, Precision.FP8_BLOCK, Precision.NVFP4), 2.0**-9)
"""Recipes of which the product of a code and its scale need not be a half: largest distance of losses, which is what
rounding to bfloat16 loses of a figure."""


@pytest.mark.parametrize("precision", long_but([p for p in Precision if p.half and p is not Precision.FP16], 0))
def test_losses_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch, cubins: Path, precision: Precision) -> None:
    plan, launches, by_array_code = plan_of(precision), Counter[str](), kinds_by_array_code(monkeypatch)
    monkeypatch.setattr(LoadedKernels, "bind", on_host(launches))
    kernels, _ = open_backend(monkeypatch, cubins)
    losses = losses_of(plan, kernels, steps=STEPS)
    right = on_one_device(plan, steps=STEPS)[1]
    assert losses == pytest.approx(right, rel=ROUNDED.get(precision, 1e-5))
    assert by_array_code <= SCALARS
    assert {one for one in launches if one in CODED} == CODES_OF.get(precision, set())
    assert ("amax" in launches) is (precision in (Precision.FP8_CURRENT, Precision.NVFP4))


@pytest.mark.parametrize("kind", ["quantize", "quantize_blocks"])
def test_codes_that_no_kernel_takes_are_refused(monkeypatch: pytest.MonkeyPatch, cubins: Path, kind: str) -> None:
    """Of a piece without elements; two codes are a byte, which is no figure."""
    kernels, _ = open_backend(monkeypatch, cubins)
    one, dtype = np.array(1, np.float32), DType.FLOAT8_E4M3
    x, attrs = np.zeros((3, 16), np.float32), {"dtype": str(dtype), "observes": 0}
    if kind == "quantize_blocks":
        dtype = DType.FLOAT4_E2M1_X2
        attrs = {"dtype": str(dtype), "scales": str(DType.FLOAT8_E4M3), "blocks": (1, 16)}
    call = call_of(kind, (x, one), **attrs)
    few = tuple(array[:0] if array.ndim else array for array in call.outputs)
    call = replace(call, inputs=(x[:0], one), outputs=few)
    with pytest.raises(EnvironmentLacks, match=rf"no kernel for {kind} of .*\[0, .*precision=bf16"):
        kernels.bind(op_definition(kind), call)
