"""The sources are one program per element type, and what Python knows of them is what they say."""

from __future__ import annotations

import re

import pytest

from executor.runtime.kernels.gpu import arithmetic, elementwise, norms, program, update
from executor.runtime.kernels.gpu.program import SOURCES, all_parameters, parameters, program_text, source_files
from strategy.sbp.tensor import DType

TEXTS = {path.name: path.read_text() for path in sorted(SOURCES.iterdir()) if path.suffix in (".cu", ".cuh")}


@pytest.mark.parametrize("name", TEXTS)
def test_a_source_has_no_conditions_of_its_own(name: str) -> None:
    """The device's compiler and the host's see the same tokens: pragmas that unroll are all that there is."""
    directives = re.findall(r"^\s*#.*$", TEXTS[name], re.MULTILINE)
    assert [line for line in directives if "#pragma unroll" not in line] == []


@pytest.mark.parametrize("name", source_files())
def test_a_source_says_what_its_kernels_move_at_least(name: str) -> None:
    head = TEXTS[name].partition("\n\n")[0]
    assert head.startswith("// ")
    header = "\n".join(line for line in TEXTS[name].split("\n") if line.startswith("//"))
    kernels = parameters(TEXTS[name])
    assert kernels
    assert "FLOP" in header
    assert re.search(r"elements|bytes|floats", header)


def test_no_kernel_has_the_name_of_another() -> None:
    assert len(all_parameters()) == sum(len(parameters(TEXTS[name])) for name in source_files())
    assert len(all_parameters()) == sum(text.count("__global__ void") for text in TEXTS.values())


@pytest.mark.parametrize(
    ("file", "constant", "value"),
    [
        ("element.cuh", "PACK = 16 /", program.PACK_NBYTES),
        ("dropout.cu", "LEADING_DIMS =", elementwise.LEADING_DIMS),
        ("adamw.cu", "TENSORS =", update.TENSORS),
        ("arithmetic.cu", "TERMS =", arithmetic.TERMS),
        ("norm_grad.cu", "HELD =", norms.HELD),
    ],
)
def test_constants_are_those_of_the_sources(file: str, constant: str, value: int) -> None:
    found = re.search(re.escape(constant), TEXTS[file])
    assert found is not None
    assert re.search(rf"{re.escape(constant.partition('=')[0])}= {value}\b", TEXTS[file])


def test_a_block_is_eight_warps() -> None:
    assert "WARP = 32;" in TEXTS["element.cuh"]
    assert "WARPS = 8;" in TEXTS["element.cuh"]
    assert program.BLOCK == 8 * 32
    assert "CHUNK = BLOCK * 16;" in TEXTS["adamw.cu"]
    assert update.CHUNK == 16 * program.BLOCK


def test_a_program_names_its_element_before_its_files() -> None:
    assert program_text(DType.BFLOAT16, ("norm.cu",)).splitlines() == [
        "#include <cuda_bf16.h>",
        "#include <cuda_fp16.h>",
        "using Element = __nv_bfloat16;",
        '#include "element.cuh"',
        '#include "each.cuh"',
        '#include "columns.cuh"',
        '#include "codes.cuh"',
        '#include "ragged.cuh"',
        '#include "tensor_core.cuh"',
        '#include "norm.cu"',
    ]


def test_parameters_are_read_from_the_source() -> None:
    assert all_parameters()["zero"] == ("Element *", "int", "Index")
    assert all_parameters()["softmax"] == ("const Element *", "Element *", "Index", "int")
