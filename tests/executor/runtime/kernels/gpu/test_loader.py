"""Kernels are loaded by path, all of them at once, and acts reach them; over a CuPy whose device is the host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executor.runtime.kernels import cupy as backend
from executor.runtime.kernels.gpu import device, loader
from executor.runtime.kernels.gpu.build import ARCHITECTURES, cubin_name
from executor.runtime.kernels.gpu.cudnn import AttentionPlans
from executor.runtime.kernels.gpu.launch import Addresses, Launch
from executor.runtime.kernels.gpu.loader import LoadedKernels, architecture_for
from executor.runtime.kernels.gpu.program import ELEMENTS, all_parameters
from executor.runtime.workspaces import AssignedScratch
from strategy.base.errors import EnvironmentLacks
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.sbp.tensor import DType
from tests.support.cuda_on_host.host_cublaslt import HostCublasLt
from tests.support.cuda_on_host.host_cudnn import HostCudnn
from tests.support.cuda_on_host.host_cupy import HostCupy
from tests.support.cuda_on_host.trials import TOLERANCES, Trial, error_per_row, trials, wanted


@pytest.fixture
def cubins(tmp_path: Path) -> Path:
    """A folder with files by the names of all cubins."""
    for element in ELEMENTS:
        for architecture in ARCHITECTURES:
            (tmp_path / cubin_name(element, architecture)).touch()
    return tmp_path


CODE_FOR: Mapping[int, int] = {80: 80, 86: 80, 89: 80, 90: 90, 100: 100, 103: 100}


@pytest.mark.parametrize("capability", CODE_FOR)
def test_a_device_runs_code_of_its_generation(capability: int) -> None:
    assert architecture_for(capability) == CODE_FOR[capability]


@pytest.mark.parametrize("capability", [75, 120])
def test_a_device_of_another_generation_is_refused(capability: int) -> None:
    with pytest.raises(EnvironmentLacks, match=rf"compute capability {capability} \(80, 90, 100\)"):
        architecture_for(capability)


def test_every_kernel_is_loaded_by_path_before_anything_runs(cubins: Path) -> None:
    xp = HostCupy("100")
    LoadedKernels(xp, cubins)
    files = [cubin_name(element, 100) for element in ELEMENTS]
    assert xp.loaded == [(file, kernel) for file in files for kernel in all_parameters()]
    assert xp.launched == []


def test_missing_cubins_are_named_with_what_makes_them(tmp_path: Path) -> None:
    command = re.escape(f"python -m executor.runtime.kernels.gpu.build --out {tmp_path}")
    with pytest.raises(EnvironmentLacks, match=rf"float32\.sm_90\.cubin is missing.*{command}"):
        LoadedKernels(HostCupy(), tmp_path)


def test_structs_are_arrays_of_one_element_with_what_they_hold(cubins: Path) -> None:
    xp, x = HostCupy(), np.zeros(4, np.float32)
    loaded = LoadedKernels(xp, cubins)
    struct = np.void(np.arange(16).tobytes())
    loaded.bind(Launch("adamw", DType.FLOAT32, (1, 1, 1), (Addresses((x, None), 3), struct, np.int32(5), None)))(0)
    ((_, (addresses, figures, five, null)),) = xp.launched
    assert np.frombuffer(addresses.tobytes(), np.uint64).tolist() == [x.ctypes.data, 0, 0]
    assert (addresses.size, figures.size, addresses.dtype.itemsize) == (1, 1, 24)
    assert np.frombuffer(figures.tobytes(), np.int64).tolist() == list(range(16))
    assert (five, null) == (np.int32(5), None)


def open_backend(monkeypatch: pytest.MonkeyPatch, cubins: Path) -> tuple[backend.CupyKernels, HostCupy]:
    """The backend over a device and libraries that are the host."""
    xp = HostCupy()
    monkeypatch.setattr(backend, "_import_cupy", lambda: xp)
    monkeypatch.setattr(device, "LoadedKernels", lambda xp: LoadedKernels(xp, cubins))
    monkeypatch.setattr(device, "import_cublaslt", HostCublasLt)
    monkeypatch.setattr(device, "import_cudnn", HostCudnn)
    return backend.CupyKernels(), xp


@pytest.mark.parametrize("element", [DType.FLOAT32, DType.BFLOAT16])
def test_a_sum_over_micro_batches_begins_and_goes_on_by_one_bound_act(
    monkeypatch: pytest.MonkeyPatch, cubins: Path, element: DType
) -> None:
    kernels, xp = open_backend(monkeypatch, cubins)
    call = trials("accumulate")[0].call(element)
    (x,), (total,) = call.inputs, call.outputs
    bound = kernels.bind(op_definition("accumulate"), call)
    assert bound.repeats
    for call.first_of_piece in (True, False, False, True):
        bound.run()
    assert [name for name, _ in xp.launched] == ["copy_elements", "add_alike", "add_alike", "copy_elements"]
    assert total.tobytes() == x.tobytes()
    call.first_of_piece = False
    bound.run()
    assert error_per_row(total, 2 * x.astype(np.float64)) <= TOLERANCES[element]


def test_a_rank_beyond_the_last_gpu_shares_one_if_it_may(monkeypatch: pytest.MonkeyPatch, cubins: Path) -> None:
    _, xp = open_backend(monkeypatch, cubins)
    with pytest.raises(EnvironmentLacks, match=r"GPU 3 is needed and this machine has 1; .*--share-devices"):
        backend.CupyKernels(3)
    chosen: list[int] = []
    given = xp.cuda.Device
    monkeypatch.setattr(xp.cuda, "Device", lambda index=0: (chosen.append(index), given(index))[1])
    backend.CupyKernels(3, shared=True)
    assert chosen[0] == 0


@pytest.mark.parametrize("kind", ["layer_norm_grad", "gather"])
def test_an_act_with_kernels_reaches_them(monkeypatch: pytest.MonkeyPatch, cubins: Path, kind: str) -> None:
    """The backend's whole way, but for the device: launches, arguments as CuPy gets them, the kernels' own code."""
    kernels, xp = open_backend(monkeypatch, cubins)
    call = trials(kind)[1].call(DType.BFLOAT16)
    right = wanted(call, kind)
    kernels.bind(op_definition(kind), call).run()
    assert xp.launched
    assert xp.synchronised == 0
    kernels.wait()
    assert xp.synchronised == 1
    errors = [error_per_row(*pair) for pair in zip(call.outputs, right, strict=True)]
    assert max(errors) <= TOLERANCES[DType.BFLOAT16]


def operands(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    return tuple(np.random.default_rng(4).standard_normal(shape) for shape in shapes)


LIBRARIES = {
    "matmul": Trial("matmul", operands((3, 5), (5, 4))),
    "attention": Trial("attention", operands((2, 5, 3, 3, 8)), attrs={"causal": 1}),
}


@pytest.mark.parametrize("kind", LIBRARIES)
def test_an_act_of_a_library_reaches_it(monkeypatch: pytest.MonkeyPatch, cubins: Path, kind: str) -> None:
    kernels, xp = open_backend(monkeypatch, cubins)
    call = LIBRARIES[kind].call(DType.BFLOAT16)
    right = wanted(call, kind)
    kernels.bind(op_definition(kind), call).run()
    assert (xp.launched, xp.synchronised) == ([], 0)
    errors = [error_per_row(*pair) for pair in zip(call.outputs, right, strict=True)]
    assert max(errors) <= TOLERANCES[DType.BFLOAT16]


SCRATCH = {
    "layer_norm_grad": 1,
    "square_sum": 1,
    "rotary": 1,
    "cross_entropy": 1,
    "matmul": 1,
    "attention": 1,
    "gelu": 0,
}
"""Kinds of which some act has scratch on a device, and one of which none has."""


@pytest.mark.parametrize("kind", SCRATCH)
def test_an_act_asks_its_scratch_for_what_its_kernels_declare(
    monkeypatch: pytest.MonkeyPatch, cubins: Path, kind: str
) -> None:
    kernels, xp = open_backend(monkeypatch, cubins)
    seen = 0
    for trial in [LIBRARIES[kind]] if kind in LIBRARIES else trials(kind):
        call, definition = trial.call(DType.BFLOAT16), op_definition(kind)
        right = wanted(call, kind)
        sizes = kernels.scratch(definition, call)
        anew, kept = (xp.empty((sum(-(-n // 256) * 256 for n in some),), "uint8") for some in (sizes.anew, sizes.kept))
        kernels.bind(definition, replace(call, workspace=AssignedScratch(xp, kind, anew, kept))).run()
        errors = [error_per_row(*pair) for pair in zip(call.outputs, right, strict=True)]
        assert max(errors) <= TOLERANCES[DType.BFLOAT16]
        seen += sum((*sizes.anew, *sizes.kept)) > 0
    assert (seen > 0) == SCRATCH[kind]


def test_what_a_library_refuses_is_the_array_modules(monkeypatch: pytest.MonkeyPatch, cubins: Path) -> None:
    refusing = HostCudnn()
    refusing.refuses = True
    kernels, _ = open_backend(monkeypatch, cubins)
    monkeypatch.setattr(kernels._acts, "_attention", AttentionPlans(refusing))
    call = LIBRARIES["attention"].call(DType.BFLOAT16)
    right = wanted(call, "attention")
    kernels.bind(op_definition("attention"), call).run()
    assert len(refusing.calls) == 1
    errors = [error_per_row(*pair) for pair in zip(call.outputs, right, strict=True)]
    assert max(errors) <= TOLERANCES[DType.BFLOAT16]


@pytest.mark.parametrize("ahead_of", ["run", "download", "upload"])
def test_updates_wait_for_one_another_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch, cubins: Path, ahead_of: str
) -> None:
    """What is run or copied next comes after them; alone, an update is not waited for."""
    kernels, xp = open_backend(monkeypatch, cubins)
    updates = [trial.call(DType.FLOAT32) for trial in (trials("adamw")[0], trials("adamw")[2])]
    figures = updates[0].inputs[1:]
    for call in updates:
        kernels.bind(op_definition("adamw"), replace(call, inputs=(call.inputs[0], *figures))).run()
    assert (xp.launched, xp.synchronised) == ([], 0)
    x = xp.asarray(np.ones(4, np.float32))
    if ahead_of == "run":
        silu = trials("silu")[0].call(DType.FLOAT32)
        kernels.bind(op_definition("silu"), silu).run()
    elif ahead_of == "download":
        kernels.download(x, np.zeros(4, np.float32))
    else:
        kernels.upload(np.zeros(4, np.float32), x)
    assert [name for name, _ in xp.launched] == ["adamw", "silu"][: 2 if ahead_of == "run" else 1]
    (addresses, *_) = xp.launched[0][1]
    gradients = [call.inputs[0].ctypes.data for call in updates]
    assert np.frombuffer(addresses.tobytes(), np.uint64)[:3].tolist() == [*gradients, 0]


def test_an_act_without_kernels_is_the_array_modules(monkeypatch: pytest.MonkeyPatch, cubins: Path) -> None:
    kernels, xp = open_backend(monkeypatch, cubins)
    x, y = np.array([-1.0, 2.0]), np.empty(2)
    call = Call(xp, {}, (x,), (y,), (), (((0, 2),),), (((0, 2),),), Workspace(xp))
    kernels.bind(op_definition("relu"), call).run()
    assert y.tolist() == [0, 2]
    assert xp.launched == []


def test_the_backend_says_what_makes_its_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(backend, "_import_cupy", HostCupy)
    monkeypatch.setattr(device, "LoadedKernels", lambda xp: LoadedKernels(xp, tmp_path))
    monkeypatch.setattr(device, "import_cublaslt", HostCublasLt)
    monkeypatch.setattr(device, "import_cudnn", HostCudnn)
    with pytest.raises(EnvironmentLacks, match=r"gpu\.build") as caught:
        backend.CupyKernels()
    assert caught.value.exit_code == 5
    assert loader.CUBINS.name == "cubins"
