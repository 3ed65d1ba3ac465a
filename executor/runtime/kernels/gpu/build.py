"""Makes the cubins, before there is a device: python -m executor.runtime.kernels.gpu.build --out DIR.

A cubin per element type and architecture, and `usage.md`: registers, spills and shared memory of every kernel.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from executor.runtime.kernels.gpu import nvrtc
from executor.runtime.kernels.gpu.program import ELEMENTS, SOURCES, program_text, source_files
from executor.runtime.kernels.gpu.usage import KernelUsage, usage_of, usage_page
from strategy.base.errors import SbplanError
from strategy.sbp.tensor import DType

ARCHITECTURES = (80, 90, 100)
"""Compute capabilities: A100; H100 and H200; B200."""
CUBINS = Path(__file__).parent / "cubins"
"""Where they are put, and looked for, if nothing else is said."""


def cubin_name(element: DType, architecture: int) -> str:
    """The file of one program for one architecture."""
    return f"{element}.sm_{architecture}.cubin"


def build(folder: Path) -> dict[tuple[str, int], dict[str, KernelUsage]]:
    """Compiles all programs for all architectures into a folder.

    Returns:
        Of every kernel, by (element, architecture), what it uses.

    Raises:
        EnvironmentLacks: there is no compiler.
    """
    folder.mkdir(parents=True, exist_ok=True)
    usages = {}
    for element in ELEMENTS:
        text = program_text(element, source_files())
        for architecture in ARCHITECTURES:
            cubin = nvrtc.compile_program(text, architecture, SOURCES)
            (folder / cubin_name(element, architecture)).write_bytes(cubin.code)
            usages[str(element), architecture] = usage_of(cubin.log, cubin.ptx)
    (folder / "usage.md").write_text(usage_page(usages, nvrtc.version()))
    return usages


def main(argv: Sequence[str]) -> int:
    """The command; exit 1 where a kernel has a stack or spills to it."""
    parser = argparse.ArgumentParser(prog="python -m executor.runtime.kernels.gpu.build", description=__doc__)
    parser.add_argument("--out", type=Path, default=CUBINS, metavar="DIR", help="folder of the cubins")
    folder: Path = parser.parse_args(argv).out
    try:
        usages = build(folder)
    except SbplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    spilling = sorted(
        {
            name
            for usage in usages.values()
            for name, kernel in usage.items()
            if kernel.spilled_bytes + kernel.stack_bytes
        }
    )
    sys.stdout.write(f"NVRTC {nvrtc.version()}: {len(usages)} cubins and usage.md in {folder}\n")
    if spilling:
        sys.stdout.write(f"kernels with a stack, or that spill registers to it: {', '.join(spilling)}\n")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
