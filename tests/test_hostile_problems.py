"""Files that a reader should not trust: each ends in one message, exit 2, within ten seconds and 1 GB."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.long_parameters import long_but

ROOT = Path(__file__).parent.parent
MEASURED = """
import atexit, pathlib, resource, sys, time

used, status = pathlib.Path(sys.argv.pop()), pathlib.Path("/proc/self/status")

def tell():
    if status.exists():
        found = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        most = 1024 * int(found.split()[1])
    else:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    used.write_text(f"{most} {time.process_time()}")

atexit.register(tell)
from experiments.entry import main
sys.exit(main())
"""
"""`sbplan`, and the most memory that it had. What the kernel says of an ended child counts the parent's own."""
LONGEST_S = 10.0
"""Of computing, which a machine that others use does not change."""
MOST_BYTES = 10**9


def _repeated(path: Path, piece: bytes, times: int, *, before: bytes = b"", after: bytes = b"") -> None:
    """A gzip file of `before`, `times` times `piece`, and `after`; kilobytes on disk, gigabytes unpacked."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    block = piece * max(1, 2**20 // len(piece))
    with path.open("wb") as file:
        file.write(packer.compress(before))
        for _ in range(times * len(piece) // len(block)):
            file.write(packer.compress(block))
        file.write(packer.compress(after) + packer.flush())


def _zeros(path: Path) -> None:
    _repeated(path, b"\0", 10**9)


def _spaces(path: Path) -> None:
    _repeated(path, b" ", 250 * 2**20, before=b'{"problem": ', after=b"1}")


def _brackets(path: Path) -> None:
    _repeated(path, b"[", 10**9)


def _balanced_brackets(path: Path) -> None:
    path.write_bytes(b"[" * 1_900_000 + b"]" * 1_900_000)


def _empty_lists(path: Path) -> None:
    _repeated(path, b"[],", 20 * 10**6, before=b'{"problem": {"nodes": {"costs": [', after=b"[]]}}}")


def _numbers(path: Path) -> None:
    _repeated(path, b"7,", 40 * 10**6, before=b'{"problem": {"nodes": {"costs": [[', after=b"7]]}}}")


def _most_numbers(path: Path) -> None:
    """As many as may be, each an object of its own."""
    _repeated(path, b"70000000,", 15 * 10**6, before=b'{"problem": {"nodes": {"costs": [[', after=b"7]]}}}")


def _faulty_nodes(path: Path) -> None:
    """Every one of 600,000 nodes is wrong."""
    nodes = b'{"intervals": [%s], "costs": [%s], "usages": [%s]}'
    parts = (b"[2,1]," * 600_000, b"[1]," * 600_000, b"[1]," * 600_000)
    edges = b'{"nodes": [], "costs": []}'
    path.write_bytes(b'{"problem": {"nodes": %s, "edges": %s}}' % (nodes % tuple(p[:-1] for p in parts), edges))


def _keys_twice(path: Path) -> None:
    _repeated(path, b'"costs":1,"c[":[[1]],', 600_000, before=b'{"problem": {"nodes": {', after=b'"usages": []}}}')


def _long_string(path: Path) -> None:
    path.write_bytes(b'{"problem": {"name": "' + b"[" * 1_900_000 + b'\\""}}')


def _long_number(path: Path) -> None:
    path.write_bytes(b'{"problem": {"usage_limit": ' + b"9" * 50_000_000 + b"}}")


def _truncated(path: Path) -> None:
    whole = ROOT / "experiments/reference/iopddl/asplos-2025-iopddl-A.json.gz"
    path.write_bytes(whole.read_bytes()[:-1000])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _empty_packed(path: Path) -> None:
    path.write_bytes(gzip.compress(b""))


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make", "words"),
    long_but(
        [
            ("zeros.json.gz", _zeros, "too long (expected at most 268435456 bytes of JSON)"),
            ("spaces.json.gz", _spaces, "not an iopddl problem"),
            ("brackets.json.gz", _brackets, "too long"),
            ("balanced.json", _balanced_brackets, "not an iopddl problem"),
            ("lists.json.gz", _empty_lists, "too many lists"),
            ("numbers.json.gz", _numbers, "too many numbers"),
            ("most.json.gz", _most_numbers, "not an iopddl problem"),
            ("nodes.json", _faulty_nodes, "nodes.intervals[0] is [2, 1]"),
            ("twice.json.gz", _keys_twice, "key 'costs' is given"),
            ("string.json", _long_string, "not an iopddl problem"),
            ("number.json", _long_number, "Integer value out of range - at `$.problem.usage_limit`"),
            ("truncated.json.gz", _truncated, "is the file complete?"),
            ("empty.json", _empty, "not an iopddl problem"),
            ("empty.json.gz", _empty_packed, "not an iopddl problem"),
            ("folder.json", _folder, "cannot be read: Is a directory"),
        ],
        *(0, 3, 4, 8, 10, 11),
    ),
)
def test_a_hostile_file_is_refused_quickly_and_in_little_memory(
    tmp_path: Path, name: str, make: Callable[[Path], None], words: str
) -> None:
    path = tmp_path / name
    make(path)
    used = tmp_path / "used"
    job = subprocess.run(
        [sys.executable, "-c", MEASURED, "solve", str(path), str(used)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stderr=subprocess.PIPE,
        check=False,
    )
    said = job.stderr.decode()
    assert job.returncode == 2, said
    assert said.startswith(f"sbplan: {path}: ")
    assert said.count("\n") == 1
    assert len(said) < 2000
    assert words in said
    most, computing = used.read_text().split()
    most_bytes, computing_s = int(most), float(computing)
    assert computing_s < LONGEST_S
    assert most_bytes < MOST_BYTES
    print(f"{name}: {computing_s:.1f} s, {most_bytes // 2**20} MB")
