"""The contest's file format (iopddl, ASPLOS / EuroSys 2025), read with every fault named, and written back.

    {"problem": {"name": ..., "usage_limit": ...,
                 "nodes": {"intervals": [[begin, end]...], "costs": [[...]...], "usages": [[...]...]},
                 "edges": {"nodes": [[tail, head]...], "costs": [[row-major tail x head]...]}}}

Intervals are half-open; 10^18 forbids; `usage_limit` and `name` may be absent. Nodes have no names in the format:
ours are `n0`, `n1`, ... A path that ends in `.gz` is compressed.

Sizes are bounded before anything is built, so that a small file that unpacks to a huge one costs seconds, not memory.
The largest problems of the contest have 10 million table cells.
"""

from __future__ import annotations

import gc
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from strategy.base.errors import InputError
from strategy.base.files import MAX_JSON_BYTES, MAX_JSON_VALUES, write_atomic
from strategy.base.limits import LARGEST
from strategy.ilp.problem import Edge, Node, Problem, Usage

# Faults that one message spells out; the rest are counted.
MAX_SHOWN = 5
# Lists in a file, beside the limits of any JSON. At these bounds, a problem takes less than 1 GB until it is checked.
MAX_LISTS = 2 * 10**6
# How often a file has each key: `nodes`, `edges` and `problem` each have theirs once.
_KEYS = {"problem": 1, "nodes": 2, "edges": 1, "intervals": 1, "costs": 2, "usages": 1, "name": 1, "usage_limit": 1}


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
        InputError: the file cannot be read, is too large, is not this format, or its lengths, indices or intervals
            disagree. All disagreements are collected into one message.
    """
    collects = gc.isenabled()
    gc.disable()  # millions of lists and tuples, all of them kept: looking for garbage among them takes half the time
    try:
        return _read(path)
    finally:
        if collects:
            gc.enable()


def _read(path: Path) -> Problem:
    raw = _unpacked(path)
    _check_size(raw, path)
    _check_keys(raw, path)
    try:
        body = msgspec.json.decode(raw, type=_File).problem
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"not an iopddl problem: {error}",
            where=str(path),
            expected="problem.nodes {intervals, costs, usages} and problem.edges {nodes, costs}, 64-bit integers only",
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
    write_atomic(path, gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def _unpacked(path: Path) -> bytes:
    """The text of a file, read no further than it may be long."""
    text = io.BytesIO()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while text.tell() <= MAX_JSON_BYTES and (piece := file.read(2**20)):
                text.write(piece)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), hint="is the file complete?") from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    return text.getvalue()


def _check_size(raw: bytes, path: Path) -> None:
    if len(raw) > MAX_JSON_BYTES:
        raise InputError("too long", where=str(path), expected=f"at most {MAX_JSON_BYTES} bytes of JSON")
    for what, mark, most in (("lists", b"[", MAX_LISTS), ("numbers", b",", MAX_JSON_VALUES)):
        count = raw.count(mark)
        if count > most:
            raise InputError(f"too many {what}", where=str(path), got=count, expected=f"at most {most}")


def _check_keys(raw: bytes, path: Path) -> None:
    """Refuse a key of ours that is given twice in one object: of two, a reader would take either.

    A file that has every key as often as the format has it holds no key twice; most do.
    """
    if raw.count(b'"') <= 2 * (1 + sum(_KEYS.values())) and b"\\" not in raw:
        strings = Counter(raw.split(b'"')[1::2])
        if all(strings[key.encode()] <= times for key, times in _KEYS.items()):
            return
    with_lists = re.sub(rb"\[[^][{}\"]*+\]", b"0", raw)
    skeleton = re.sub(rb"\[[^][{}\"]*+\]", b"0", with_lists)

    def check(pairs: list[tuple[str, object]]) -> None:
        for key, times in Counter(key for key, _ in pairs).items():
            if times > 1 and key in _KEYS:
                raise InputError(f"key {key!r} is given {times} times in one object", where=str(path))

    with suppress(ValueError, RecursionError):  # what is no JSON is told where it is decoded
        json.loads(skeleton, object_pairs_hook=check)


def _faults(body: _Problem) -> list[str]:
    """What lengths, indices, intervals and amounts are wrong, each with its place."""
    nodes, edges = body.nodes, body.edges
    faults = []
    count = len(nodes.costs)
    for name, length in (("intervals", len(nodes.intervals)), ("usages", len(nodes.usages))):
        if length != count:
            faults.append(f"nodes.{name} has {length} entries (expected {count}, as nodes.costs)")
    if len(edges.nodes) != len(edges.costs):
        faults.append(f"edges.costs has {len(edges.costs)} entries (expected {len(edges.nodes)}, as edges.nodes)")
    if body.usage_limit is not None and not 0 <= body.usage_limit <= LARGEST:
        faults.append(f"usage_limit is {body.usage_limit} (expected 0 to 2^63 - 1)")
    return faults or [*_node_faults(nodes), *_edge_faults(edges, [len(costs) for costs in nodes.costs])]


def _node_faults(nodes: _Nodes) -> Iterator[str]:
    for i, ((begin, end), costs, usages) in enumerate(zip(nodes.intervals, nodes.costs, nodes.usages, strict=True)):
        if not 0 <= begin <= end <= LARGEST:
            yield f"nodes.intervals[{i}] is [{begin}, {end}] (expected 0 <= begin <= end < 2^63)"
        if not costs:
            yield f"nodes.costs[{i}] is empty (expected at least one choice)"
        if len(usages) != len(costs):
            yield f"nodes.usages[{i}] has {len(usages)} entries (expected {len(costs)}, as nodes.costs[{i}])"
        yield from _amount_faults(f"nodes.costs[{i}]", costs)
        yield from _amount_faults(f"nodes.usages[{i}]", usages)


def _edge_faults(edges: _Edges, choices: Sequence[int]) -> Iterator[str]:
    for k, ((tail, head), costs) in enumerate(zip(edges.nodes, edges.costs, strict=True)):
        if not (0 <= tail < len(choices) and 0 <= head < len(choices)):
            yield f"edges.nodes[{k}] is [{tail}, {head}] (expected indices in 0..{len(choices) - 1})"
            continue
        cells = choices[tail] * choices[head]
        if len(costs) != cells:
            yield f"edges.costs[{k}] has {len(costs)} entries (expected {cells}, tail x head choices)"
        yield from _amount_faults(f"edges.costs[{k}]", costs)


def _amount_faults(where: str, amounts: Sequence[int]) -> Iterator[str]:
    if amounts and not (min(amounts) >= 0 and max(amounts) <= LARGEST):
        at, amount = next((at, amount) for at, amount in enumerate(amounts) if not 0 <= amount <= LARGEST)
        yield f"{where}[{at}] is {amount} (expected 0 to 2^63 - 1)"
