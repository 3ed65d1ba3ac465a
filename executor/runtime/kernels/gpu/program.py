"""A program of all kernels for one element type: what the compiler is given, and what its kernels' parameters are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from strategy.sbp.tensor import DType

SOURCES = Path(__file__).parent / "sources"
ELEMENTS: Mapping[DType, str] = {
    DType.FLOAT32: "float",
    DType.BFLOAT16: "__nv_bfloat16",
    DType.FLOAT16: "__half",
}
"""Element types of kernels, and what CUDA calls them."""
WARP, WARPS = 32, 8
BLOCK = WARP * WARPS
"""Threads of every block, and of its warps."""
PACK_NBYTES = 16
"""Of a vector load."""
_HEADERS = ("cuda_bf16.h", "cuda_fp16.h")
_SHARED = ("element.cuh", "each.cuh", "columns.cuh", "codes.cuh", "ragged.cuh", "tensor_core.cuh")
_KERNEL = re.compile(r'extern "C" __global__ void\s+__launch_bounds__\([^)]*\)\s+(\w+)\(([^)]*)\)')


def source_files() -> tuple[str, ...]:
    """Names of the files of kernels."""
    return tuple(sorted(path.name for path in SOURCES.glob("*.cu")))


def program_text(element: DType, files: Sequence[str]) -> str:
    """The program of these files for one element type."""
    headers = [f"#include <{name}>" for name in _HEADERS]
    ours = [f'#include "{name}"' for name in (*_SHARED, *files)]
    return "\n".join([*headers, f"using Element = {ELEMENTS[element]};", *ours, ""])


def parameters(text: str) -> dict[str, tuple[str, ...]]:
    """Of every kernel in a source, the types of its parameters: "const Element *", "int"."""
    found = {}
    for name, between in _KERNEL.findall(text):
        types = (re.fullmatch(r"\s*(.*?)\w+\s*", line, re.DOTALL) for line in between.split(","))
        found[name] = tuple(" ".join(match.group(1).split()) for match in types if match is not None)
    return found


def all_parameters() -> dict[str, tuple[str, ...]]:
    """`parameters` of all kernels."""
    found: dict[str, tuple[str, ...]] = {}
    for name in source_files():
        found |= parameters((SOURCES / name).read_text())
    return found
