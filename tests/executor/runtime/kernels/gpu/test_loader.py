"""Kernels are loaded by path, all of them at once, and acts reach them; over a CuPy whose device is the host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from executor.runtime.kernels import cupy as backend
from executor.runtime.kernels.gpu import loader
from executor.runtime.kernels.gpu.build import ARCHITECTURES, cubin_name
from executor.runtime.kernels.gpu.launch import Addresses, Launch
from executor.runtime.kernels.gpu.loader import LoadedKernels, architecture_for
from executor.runtime.kernels.gpu.program import ELEMENTS, all_parameters
from strategy.base.errors import EnvironmentLacks
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.sbp.tensor import DType
from tests.support.cuda_on_host.device import build, run
from tests.support.cuda_on_host.trials import TOLERANCES, error_per_row, trials, wanted


class FakeCupy:
    """What the backend asks of CuPy, with NumPy's arrays; kernels run on the host, if anything launches them."""

    def __init__(self, capability: str = "90") -> None:
        self.loaded: list[tuple[str, str]] = []
        self.launched: list[tuple[str, tuple[Any, ...]]] = []
        self.synchronised = 0
        device = SimpleNamespace(compute_capability=capability, use=lambda: None)
        stream = SimpleNamespace(synchronize=self.synchronise)
        self.cuda = SimpleNamespace(
            Device=lambda index=0: device,
            get_current_stream=lambda: stream,
            runtime=SimpleNamespace(getDeviceCount=lambda: 1),
        )

    def synchronise(self) -> None:
        self.synchronised += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def RawModule(self, *, path: str) -> Any:
        def get_function(name: str) -> Any:
            self.loaded.append((Path(path).name, name))

            def function(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
                assert block == (256, 1, 1)
                self.launched.append((name, arguments))
                if not any(
                    isinstance(argument, np.ndarray) and argument.dtype.type is np.void for argument in arguments
                ):
                    element = DType(Path(path).name.partition(".")[0])
                    run(build(element), [Launch(name, element, (grid[0], grid[1], grid[2]), arguments)])

            return function

        return SimpleNamespace(get_function=get_function)


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
    xp = FakeCupy("100")
    LoadedKernels(xp, cubins)
    files = [cubin_name(element, 100) for element in ELEMENTS]
    assert xp.loaded == [(file, kernel) for file in files for kernel in all_parameters()]
    assert xp.launched == []


def test_missing_cubins_are_named_with_what_makes_them(tmp_path: Path) -> None:
    command = re.escape(f"python -m executor.runtime.kernels.gpu.build --out {tmp_path}")
    with pytest.raises(EnvironmentLacks, match=rf"float32\.sm_90\.cubin is missing.*{command}"):
        LoadedKernels(FakeCupy(), tmp_path)


def test_structs_are_arrays_of_one_element_with_what_they_hold(cubins: Path) -> None:
    xp, x = FakeCupy(), np.zeros(4, np.float32)
    loaded = LoadedKernels(xp, cubins)
    struct = np.void(np.arange(16).tobytes())
    loaded.launch(Launch("adamw", DType.FLOAT32, (1, 1, 1), (Addresses((x, None), 3), struct, np.int32(5), None)))
    ((_, (addresses, figures, five, null)),) = xp.launched
    assert np.frombuffer(addresses.tobytes(), np.uint64).tolist() == [x.ctypes.data, 0, 0]
    assert (addresses.size, figures.size, addresses.dtype.itemsize) == (1, 1, 24)
    assert np.frombuffer(figures.tobytes(), np.int64).tolist() == list(range(16))
    assert (five, null) == (np.int32(5), None)


@pytest.mark.parametrize("kind", ["layer_norm_grad", "gather"])
def test_an_act_with_kernels_reaches_them(monkeypatch: pytest.MonkeyPatch, cubins: Path, kind: str) -> None:
    """The backend's whole way, but for the device: launches, arguments as CuPy gets them, the kernels' own code."""
    xp = FakeCupy()
    monkeypatch.setattr(backend, "_import_cupy", lambda: xp)
    monkeypatch.setattr(backend, "LoadedKernels", lambda xp: LoadedKernels(xp, cubins))
    kernels = backend.CupyKernels()
    call = trials(kind)[1].call(DType.BFLOAT16)
    right = wanted(call, kind)
    kernels.run(op_definition(kind), call)
    assert xp.launched
    assert xp.synchronised == 0
    kernels.wait()
    assert xp.synchronised == 1
    errors = [error_per_row(*pair) for pair in zip(call.outputs, right, strict=True)]
    assert max(errors) <= TOLERANCES[DType.BFLOAT16]


def test_an_act_without_kernels_is_the_array_modules(monkeypatch: pytest.MonkeyPatch, cubins: Path) -> None:
    xp = FakeCupy()
    monkeypatch.setattr(backend, "_import_cupy", lambda: xp)
    monkeypatch.setattr(backend, "LoadedKernels", lambda xp: LoadedKernels(xp, cubins))
    x, y = np.array([-1.0, 2.0]), np.empty(2)
    call = Call(xp, {}, (x,), (y,), (), (((0, 2),),), (((0, 2),),), Workspace(xp))
    backend.CupyKernels().run(op_definition("relu"), call)
    assert y.tolist() == [0, 2]
    assert xp.launched == []


def test_the_backend_says_what_makes_its_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(backend, "_import_cupy", FakeCupy)
    monkeypatch.setattr(backend, "LoadedKernels", lambda xp: LoadedKernels(xp, tmp_path))
    with pytest.raises(EnvironmentLacks, match=r"gpu\.build") as caught:
        backend.CupyKernels()
    assert caught.value.exit_code == 5
    assert loader.CUBINS.name == "cubins"
