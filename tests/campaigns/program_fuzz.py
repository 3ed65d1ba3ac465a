"""Damaged and hostile programs: .pt2 and .onnx files that were changed are read or refused in one message.

A third of the cases changes bytes of a file, or of an entry of its archive; the others change what it says: targets of
nodes, names, figures, shapes, dtypes, order. Cases run in a process of their own with a limit of memory and an alarm,
so that a crash, a hang and a flood are found, and told by the case.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import signal
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from strategy.base.errors import InputError
from strategy.models.imported import foreign_module as module_under_test
from strategy.models.imported import interpreter, protobuf
from strategy.models.imported.read import read_program
from strategy.models.imported.table import known_operators
from tests.campaigns.checkpoint_fuzz import DAMAGES
from tests.campaigns.outcome import Outcome
from tests.support.foreign_programs import FILES

LONGEST_S = 20.0
"""Of one case, on a machine that does other things too."""
MOST_BYTES = 3 * 2**30
"""Of memory that the process of the cases may take besides what it has."""
AT_ONCE = 40
"""Cases of one process."""
QUOTAS = {"table": 0.30, "refused": 0.30, "read": 0.02, ".pt2": 0.4, ".onnx": 0.4}
FIGURES = (0, 1, -1, 2, 3, 7, 64, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63), 1 << 70)
TEXTS = ("", "x", "..", "../../etc/passwd", "\x1b[31m", "a" * 5000, "\u202e", "layers.0", "nan", "input_ids", "x\0y")


def run(cases: int, seed: int) -> Outcome:
    """Read changed files."""
    outcome = Outcome(QUOTAS)
    for begin in range(0, cases, AT_ONCE):
        numbers = range(begin, min(begin + AT_ONCE, cases))
        found = _in_a_process(seed, numbers)
        for number in numbers:
            problems, exercised = found.get(number, (["the process ended in the middle of it"], []))
            outcome.add(f"case {number} of seed {seed}", problems, exercised)
            if number not in found:
                break
    return outcome


def _in_a_process(seed: int, numbers: range) -> dict[int, tuple[list[str], list[str]]]:
    """Case -> what was wrong, and what it exercised; cases behind one that ends the process are left out."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, used + MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            with os.fdopen(writable, "w") as file:
                for number in numbers:
                    file.write(json.dumps([number, *_case(seed, number)]) + "\n")
                    file.flush()
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    os.waitpid(child, 0)
    return {number: (problems, exercised) for number, problems, exercised in lines}


def _case(seed: int, number: int) -> tuple[list[str], list[str]]:
    rng = random.Random(f"{seed}:{number}")
    source = rng.choice(FILES)
    content, kind = changed(source, rng)
    exercised = [source.suffix, kind]

    def reached(*arguments: Any) -> None:
        exercised.append("table")
        interpreter.check_operators(*arguments)

    def too_long(*_: object) -> None:
        raise TimeoutError(f"still reading after {LONGEST_S} s")

    real = interpreter.used_nodes
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / source.name
        path.write_bytes(content)
        module_under_test.used_nodes = lambda graph: _checked(graph, reached)  # type: ignore[attr-defined]
        signal.signal(signal.SIGALRM, too_long)
        signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
        try:
            read_program(str(path))
            exercised.append("read")
        except InputError as error:
            exercised.append("refused")
            if str(path) not in str(error):
                problems.append(f"{kind}: the message names no file: {error}")
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            problems.append(f"{kind}: {type(error).__name__}: {error}"[:500])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            module_under_test.used_nodes = real  # type: ignore[attr-defined]
    return problems, exercised


def _checked(graph: Any, reached: Callable[..., None]) -> Any:
    """As `interpreter.used_nodes`, and notes that the table was asked."""
    nodes = interpreter.in_use(graph)
    reached(graph, nodes)
    return nodes


def changed(source: Path, rng: random.Random) -> tuple[bytes, str]:
    """A changed file, and how it was changed."""
    content = source.read_bytes()
    if rng.random() < 0.25:
        damage = rng.choice(DAMAGES)
        return damage(content, rng), f"bytes {damage.__name__}"
    if source.suffix == ".onnx":
        return changed_onnx(content, rng), "onnx said"
    return changed_archive(content, rng)


def changed_archive(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """An archive with a changed entry, or changed entries."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    draw = rng.random()
    if draw < 0.15:
        at = rng.randrange(len(entries))
        damage = rng.choice(DAMAGES)
        name, held = entries[at]
        entries[at] = (name, damage(held, rng) if held else b"x")
        kind = f"entry {damage.__name__}"
    elif draw < 0.25:
        at = rng.randrange(len(entries))
        name, held = entries[at]
        other = rng.choice((f"../{name}", f"/{name}", rng.choice(entries)[0], name.replace("/", "\\"), f"{name}/../x"))
        entries[at] = (other, held if rng.random() < 0.7 else bytes(1 << 24))
        kind = "entries"
    else:
        documents = [at for at, (name, _) in enumerate(entries) if name.endswith(".json")]
        models = [at for at in documents if "/models/" in entries[at][0]]
        at = rng.choice(models if rng.random() < 0.85 else documents)
        document = json.loads(entries[at][1])
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            change_json(document, rng)
        entries[at] = (entries[at][0], json.dumps(document).encode())
        kind = "pt2 said"
    target = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice, as they shall be
        for name, held in entries:
            archive.writestr(zipfile.ZipInfo(name), held, zipfile.ZIP_DEFLATED)
    return target.getvalue(), kind


def _slots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    waiting = [value]
    while waiting:
        held = waiting.pop()
        for key in held if isinstance(held, dict) else range(len(held)):
            yield held, key
            if isinstance(held[key], (dict, list)):
                waiting.append(held[key])


def change_json(document: Any, rng: random.Random) -> None:
    """Change one value somewhere: mostly in a node."""
    graph = document.get("graph_module", {}).get("graph", {}) if isinstance(document, dict) else {}
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    draw = rng.random()
    if isinstance(nodes, list) and nodes and draw < 0.75:
        at = rng.randrange(len(nodes))
        if draw < 0.1:
            nodes[at]["target"] = rng.choice(
                (f"torch.ops.{rng.choice(known_operators())}.default", "torch.ops.aten.no.x")
            )
            return
        if draw < 0.2:
            other = rng.randrange(len(nodes))
            nodes[at], nodes[other] = nodes[other], nodes[at]
            return
        if draw < 0.25:
            nodes.insert(rng.randrange(len(nodes)), nodes[at])
            return
        document = nodes[at]
    slots = list(_slots(document))
    if not slots:
        return
    held, key = rng.choice(slots)
    value = held[key]
    if rng.random() < 0.1:
        del held[key]
    elif isinstance(value, bool) or value is None:
        held[key] = rng.choice((True, False, None, 3, "x", []))
    elif isinstance(value, (int, float)):
        held[key] = rng.choice((*FIGURES, value + 1, value - 1, 0.5, "7", None, [value]))
    elif isinstance(value, str):
        names = [one for h, k in slots if isinstance(one := h[k], str)]
        held[key] = rng.choice((*TEXTS, rng.choice(names), rng.choice(names), 5, None))
    elif isinstance(value, list) and value:
        rng.choice((value.reverse, value.clear, value.pop, lambda: value.append(value[0])))()
    else:
        held[key] = rng.choice(([], {}, None, 1, "x"))


Field = tuple[int, int | bytes]


def _split(message: bytes) -> list[Field]:
    return [
        (number, value if isinstance(value, int) else bytes(value))
        for number, value in protobuf.fields(memoryview(message), "a file of ours")
    ]


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def _joined(parts: list[Field], fixed: tuple[int, ...] = ()) -> bytes:
    """A message of fields; those in `fixed` are floats of 32 bits."""
    found = bytearray()
    for number, value in parts:
        if isinstance(value, int):
            found += _varint(number << 3) + _varint(value)
        elif number in fixed and len(value) == 4:
            found += _varint(number << 3 | 5) + value
        else:
            found += _varint(number << 3 | 2) + _varint(len(value)) + value
    return bytes(found)


NODE, TENSOR, INPUT, OUTPUT, ATTRIBUTE = 1, 5, 11, 12, 5
_FLOAT_OF_ATTRIBUTE = (2,)


def changed_onnx(content: bytes, rng: random.Random) -> bytes:
    """A model that says something else: of a node, a tensor, an input, an attribute."""
    model = _split(content)
    at = next(place for place, (number, _) in enumerate(model) if number == 7)
    if rng.random() < 0.05:
        other = rng.randrange(len(model))
        model[other] = (model[other][0], rng.choice((rng.randrange(99), b"", b"\x10\x05", b"\x08\x01\x10\x02")))
        return _joined(model)
    graph = _split(bytes(model[at][1]))  # type: ignore[arg-type]
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        _change_graph(graph, rng)
    model[at] = (7, _joined(graph))
    return _joined(model)


def _change_graph(graph: list[Field], rng: random.Random) -> None:
    wanted = rng.choice((NODE, NODE, NODE, NODE, TENSOR, INPUT, OUTPUT))
    places = [place for place, (number, _) in enumerate(graph) if number == wanted]
    if not places:
        return
    at, draw = rng.choice(places), rng.random()
    if draw < 0.05:
        other = rng.choice(places)
        graph[at], graph[other] = graph[other], graph[at]
    elif draw < 0.08:
        graph.insert(rng.randrange(len(graph)), graph[at])
    elif draw < 0.11:
        del graph[at]
    else:
        held = graph[at][1]
        assert isinstance(held, bytes)
        graph[at] = (wanted, _changed_message(held, rng, wanted == NODE))


def _changed_message(message: bytes, rng: random.Random, node: bool) -> bytes:
    parts = _split(message)
    if not parts:
        return b"\x08\x01"
    at = rng.randrange(len(parts))
    number, value = parts[at]
    if node and number == ATTRIBUTE and isinstance(value, bytes) and rng.random() < 0.8:
        inner = _split(value)
        place = rng.randrange(len(inner))
        inner[place] = (inner[place][0], _another(inner[place][1], rng))
        parts[at] = (number, _joined(inner, _FLOAT_OF_ATTRIBUTE))
    elif node and number == 4 and rng.random() < 0.7:
        parts[at] = (4, rng.choice(known_operators()).removeprefix("onnx.").encode())
    elif rng.random() < 0.1:
        del parts[at]
    else:
        parts[at] = (number, _another(value, rng))
    return _joined(parts)


def _another(value: int | bytes, rng: random.Random) -> int | bytes:
    if isinstance(value, int):
        return rng.choice((*FIGURES, value + 1))
    if value and rng.random() < 0.5:
        return rng.choice(DAMAGES)(value, rng)
    return rng.choice(TEXTS).encode()
