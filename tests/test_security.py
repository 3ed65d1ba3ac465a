"""What docs/security.md promises of messages: nothing that passes between ranks is a pickle."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("strategy", "simulator", "executor", "experiments")
PICKLING = {
    *("bcast", "gather", "allgather", "scatter", "alltoall", "reduce", "allreduce", "scan", "exscan"),
    *("send", "recv", "isend", "irecv", "ssend", "issend", "bsend", "ibsend", "sendrecv", "mprobe"),
}


def pickling_calls(tree: ast.AST) -> list[str]:
    """Calls of methods in lower case on what is called a communicator."""
    return [
        f"{ast.unparse(node.func)} in line {node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in PICKLING
        and "comm" in ast.unparse(node.func.value).lower()
    ]


def test_no_message_between_ranks_is_a_pickle() -> None:
    found = {
        str(path.relative_to(ROOT)): calls
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if (calls := pickling_calls(ast.parse(path.read_text())))
    }
    assert found == {}


def test_a_pickle_would_be_found() -> None:
    assert pickling_calls(ast.parse("self._comm.gather(1)\nMPI.COMM_WORLD.bcast(2)\ncomm.Gather(a, b)")) == [
        "self._comm.gather in line 1",
        "MPI.COMM_WORLD.bcast in line 2",
    ]
