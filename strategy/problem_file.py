"""The contest's file format (iopddl, ASPLOS / EuroSys 2025), read with every fault named, and written back.

    {"problem": {"name": ..., "usage_limit": ...,
                 "nodes": {"intervals": [[begin, end]...], "costs": [[...]...], "usages": [[...]...]},
                 "edges": {"nodes": [[tail, head]...], "costs": [[row-major tail x head]...]}}}

Intervals are half-open; 10^18 forbids; `usage_limit` and `name` may be absent. Nodes have no names in the format:
ours are `n0`, `n1`, ... A path that ends in `.gz` is compressed.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import msgspec

from strategy.errors import InputError
from strategy.problem import Edge, Node, Problem, Usage

# Faults that one message spells out; the rest are counted.
MAX_SHOWN = 5


class _Nodes(msgspec.Struct):
    intervals: list[tuple[int, int]]
    costs: list[list[int]]
    usages: list[list[int]]


class _Edges(msgspec.Struct):
    nodes: list[tuple[int, int]]
    costs: list[list[int]]


class _Problem(msgspec.Struct):
    nodes: _Nodes
    edges: _Edges
    name: str = "problem"
    usage_limit: int | None = None


class _File(msgspec.Struct):
    problem: _Problem


def read_problem(path: Path) -> Problem:
    """Reads one problem.

    Raises:
        InputError: the file cannot be read, is not this format, or its lengths, indices or intervals disagree. All
            disagreements are collected into one message.
    """
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
        body = msgspec.json.decode(raw, type=_File).problem
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), hint="is the file complete?") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"not an iopddl problem: {error}",
            where=str(path),
            expected="problem.nodes {intervals, costs, usages} and problem.edges {nodes, costs}, integers only",
        ) from error
    faults = _faults(body)
    if faults:
        more = f"; and {len(faults) - MAX_SHOWN} more" if len(faults) > MAX_SHOWN else ""
        raise InputError("; ".join(faults[:MAX_SHOWN]) + more, where=str(path))
    nodes = tuple(
        Node(f"n{i}", tuple(costs), (Usage(begin, end, tuple(usages)),))
        for i, ((begin, end), costs, usages) in enumerate(
            zip(body.nodes.intervals, body.nodes.costs, body.nodes.usages, strict=True)
        )
    )
    pairs = zip(body.edges.nodes, body.edges.costs, strict=True)
    edges = tuple(Edge(tail, head, tuple(costs)) for (tail, head), costs in pairs)
    return Problem(body.name, nodes, edges, body.usage_limit)


def write_problem(problem: Problem, path: Path) -> None:
    """Writes one problem; the same problem gives the same bytes.

    Raises:
        InputError: a node holds several usages, which the format cannot say.
    """
    intervals, usages = [], []
    for i, node in enumerate(problem.nodes):
        if len(node.usages) > 1:
            raise InputError(
                "the iopddl format holds one usage per node", where=f"node {i} ({node.name})", got=len(node.usages)
            )
        usage = node.usages[0] if node.usages else Usage(0, 0, (0,) * len(node.costs))
        intervals.append((usage.begin, usage.end))
        usages.append(list(usage.amounts))
    body: dict[str, object] = {
        "name": problem.name,
        "nodes": {"intervals": intervals, "costs": [list(node.costs) for node in problem.nodes], "usages": usages},
        "edges": {
            "nodes": [(edge.tail, edge.head) for edge in problem.edges],
            "costs": [list(edge.costs) for edge in problem.edges],
        },
    }
    if problem.limit is not None:
        body["usage_limit"] = problem.limit
    raw = msgspec.json.encode({"problem": body})
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def _faults(body: _Problem) -> list[str]:
    nodes, edges = body.nodes, body.edges
    faults = []
    count = len(nodes.costs)
    for name, length in (("intervals", len(nodes.intervals)), ("usages", len(nodes.usages))):
        if length != count:
            faults.append(f"nodes.{name} has {length} entries (expected {count}, as nodes.costs)")
    if len(edges.nodes) != len(edges.costs):
        faults.append(f"edges.costs has {len(edges.costs)} entries (expected {len(edges.nodes)}, as edges.nodes)")
    if body.usage_limit is not None and body.usage_limit < 0:
        faults.append(f"usage_limit is {body.usage_limit} (expected at least 0)")
    if faults:
        return faults
    for i, ((begin, end), costs, usages) in enumerate(zip(nodes.intervals, nodes.costs, nodes.usages, strict=True)):
        if not 0 <= begin <= end:
            faults.append(f"nodes.intervals[{i}] is [{begin}, {end}] (expected 0 <= begin <= end)")
        if not costs:
            faults.append(f"nodes.costs[{i}] is empty (expected at least one choice)")
        if len(usages) != len(costs):
            faults.append(f"nodes.usages[{i}] has {len(usages)} entries (expected {len(costs)}, as nodes.costs[{i}])")
        if min(usages, default=0) < 0 or min(costs, default=0) < 0:
            faults.append(f"node {i} has a negative cost or usage (expected at least 0)")
    for k, ((tail, head), costs) in enumerate(zip(edges.nodes, edges.costs, strict=True)):
        if not (0 <= tail < count and 0 <= head < count):
            faults.append(f"edges.nodes[{k}] is [{tail}, {head}] (expected indices in 0..{count - 1})")
            continue
        cells = len(nodes.costs[tail]) * len(nodes.costs[head])
        if len(costs) != cells:
            faults.append(f"edges.costs[{k}] has {len(costs)} entries (expected {cells}, tail x head choices)")
        if min(costs, default=0) < 0:
            faults.append(f"edges.costs[{k}] holds a negative cost (expected at least 0)")
    return faults
