"""What a compiled kernel uses of a multiprocessor, as the assembler reports it, and as a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strategy.base.errors import InternalError

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_BODY = re.compile(r"\.entry (\w+)\((.*?)\n}", re.DOTALL)
_VECTOR = re.compile(r"ld\.global\.(v4|v2\.[usbf]32)")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class KernelUsage:
    """Of one kernel: per thread registers, bytes of stack, bytes spilled and read back; per block shared bytes.

    And whether it loads vectors of sixteen bytes, or of eight.
    """

    registers: int
    stack_bytes: int
    spilled_bytes: int
    shared_bytes: int
    loads_vectors: bool


def usage_of(log: str, ptx: str) -> dict[str, KernelUsage]:
    """Of every kernel in the assembler's report (`ptxas -v`), and in what was assembled.

    Raises:
        InternalError: the report of a kernel cannot be read.
    """
    found = {}
    parts, bodies = _ENTRY.split(log)[1:], dict(_BODY.findall(ptx))
    for name, lines in zip(parts[::2], parts[1::2], strict=True):
        registers, spills, shared = _REGISTERS.search(lines), _SPILLS.search(lines), _SHARED.search(lines)
        if registers is None or spills is None:
            raise InternalError(f"the assembler's report of kernel {name} has another form: {lines!r}")
        stack, *spilled = map(int, spills.groups())
        in_block = int(shared.group(1)) if shared else 0
        vectors = _VECTOR.search(bodies[name]) is not None
        found[name] = KernelUsage(int(registers.group(1)), stack, sum(spilled), in_block, vectors)
    return found


def usage_page(usages: Mapping[tuple[str, int], Mapping[str, KernelUsage]], compiler: str) -> str:
    """A Markdown page: a row per kernel, a column per (element, architecture)."""
    columns = list(usages)
    kernels: Sequence[str] = sorted({name for usage in usages.values() for name in usage})
    lines = [
        "# What the kernels use",
        "",
        f"Registers / bytes of stack / bytes spilled, per thread / shared bytes per block, by NVRTC {compiler}.",
        "Generated: see [the GPU backend](gpu.md).",
        "",
        "| kernel | " + " | ".join(f"{element} sm_{architecture}" for element, architecture in columns) + " |",
        "|---" * (1 + len(columns)) + "|",
    ]
    for kernel in kernels:
        cells = (usages[column][kernel] for column in columns)
        figures = (
            f"{cell.registers} / {cell.stack_bytes} / {cell.spilled_bytes} / {cell.shared_bytes}" for cell in cells
        )
        lines.append(f"| `{kernel}` | " + " | ".join(figures) + " |")
    return "\n".join(lines) + "\n"
