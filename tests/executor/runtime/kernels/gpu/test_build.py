"""All kernels compile for three architectures without a driver, and none has a stack or spills to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.runtime.kernels.gpu import nvrtc
from executor.runtime.kernels.gpu.build import ARCHITECTURES, build, cubin_name, main
from executor.runtime.kernels.gpu.program import ELEMENTS, SOURCES, all_parameters, program_text
from executor.runtime.kernels.gpu.usage import KernelUsage, usage_of, usage_page
from strategy.base.errors import EnvironmentLacks, InputError, InternalError
from strategy.sbp.tensor import DType

PAGE = Path(__file__).parents[5] / "docs" / "gpu_kernels.md"
ENTRY = """ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 128 bytes smem
"""
PTX = ".entry k(\n.param .u64 x)\n{\nld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];\n}\n"


@pytest.mark.long
@pytest.mark.timeout(1200)  # minutes of the compiler
def test_every_kernel_is_built_and_none_spills(tmp_path: Path) -> None:
    """The page in the docs is what the build writes, to the byte."""
    usages = build(tmp_path)
    assert list(usages) == [(str(element), architecture) for element in ELEMENTS for architecture in ARCHITECTURES]
    for element in ELEMENTS:
        for architecture in ARCHITECTURES:
            usage = usages[str(element), architecture]
            assert set(usage) == set(all_parameters())
            assert [name for name, kernel in usage.items() if kernel.spilled_bytes or kernel.stack_bytes] == []
            in_vectors = [kernel for kernel, types in all_parameters().items() if types[-1] == "int"]  # `wide`
            assert [kernel for kernel in in_vectors if not usage[kernel].loads_vectors] == []
            assert (tmp_path / cubin_name(element, architecture)).read_bytes()[:4] == b"\x7fELF"
    again = "python -m executor.runtime.kernels.gpu.build --out DIR; cp DIR/usage.md docs/gpu_kernels.md"
    assert (tmp_path / "usage.md").read_text() == PAGE.read_text(), again


def test_what_a_kernel_spills_is_read_from_the_report() -> None:
    assert usage_of(ENTRY, PTX) == {"k": KernelUsage(12, 16, 12, 128, loads_vectors=True)}
    assert "| `k` | 12 / 16 / 12 / 128 |" in usage_page({("float32", 80): usage_of(ENTRY, PTX)}, "1.2")


def test_a_report_of_another_form_is_no_kernel_that_spills_nothing() -> None:
    with pytest.raises(InternalError, match="another form"):
        usage_of(ENTRY.replace("spill stores", "spills"), PTX)


def test_a_kernel_that_is_wrong_is_reported_with_its_line() -> None:
    with pytest.raises(InputError, match=r"(?s)sm_90.*kernels\.cu.*undefined"):
        nvrtc.compile_program(program_text(DType.FLOAT32, ()) + "__global__ void k() { undefined(); }", 90, SOURCES)


def test_a_missing_compiler_ends_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvrtc, "_LIBRARY", "no-such-package")
    with pytest.raises(EnvironmentLacks, match=r"sbplan\[gpu\]"):
        nvrtc.version()
    nvrtc._library.cache_clear()
    assert main(["--out", str(tmp_path)]) == 5
    assert "sbplan[gpu]" in capsys.readouterr().err
