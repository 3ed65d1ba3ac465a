"""Damaged and hostile checkpoints: refused, or what was saved; nothing crashes, and no memory is taken on their word.

Bytes of shards and of the manifest are changed, cut off, repeated and exchanged; manifests are changed and signed
anew, as somebody with bad intent would. A whole shard lies outside of the folder, so that a path that leads there would
find one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.checkpoint import TensorPart, load, open_checkpoint, save
from strategy.base.errors import InputError
from tests.campaigns.outcome import Outcome
from tests.executor.test_checkpoint import pieces_of, save_on_all, tensors_of

MANIFEST = "manifest.json"
SHARDS = ("rank-0.safetensors", "rank-1.safetensors")
Files = dict[str, bytes]
Tensors = Mapping[str, NDArray[Any]]
Damage = Callable[[bytes, random.Random], bytes]
Forge = Callable[[dict[str, Any], random.Random], None]

MOST_OF_FILE = 1.75
"""Peak memory while a checkpoint is read, in sizes of its file: what is asked for, and the half that is being read."""
LARGE_ROWS = 3000
"""Rows of 4,096 float32 of the checkpoint that memory is measured on: 47 MiB."""


def cut_off(content: bytes, rng: random.Random) -> bytes:
    """Less of it."""
    return content[: rng.randrange(len(content))]


def prolonged(content: bytes, rng: random.Random) -> bytes:
    """More of it."""
    return content + rng.randbytes(rng.randint(1, 64))


def flipped(content: bytes, rng: random.Random) -> bytes:
    """A few bits flipped."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwritten(content: bytes, rng: random.Random) -> bytes:
    """A run of zeros, ones or noise, as a lost block leaves it."""
    begin = rng.randrange(len(content))
    length = min(rng.choice((1, 4, 64, 512)), len(content) - begin)
    fill = rng.choice((b"\0" * length, b"\xff" * length, rng.randbytes(length)))
    return content[:begin] + fill + content[begin + length :]


def dropped(content: bytes, rng: random.Random) -> bytes:
    """Without a run."""
    begin = rng.randrange(len(content))
    return content[:begin] + content[begin + rng.randint(1, 64) :]


def repeated(content: bytes, rng: random.Random) -> bytes:
    """A run twice."""
    begin = rng.randrange(len(content))
    end = begin + rng.randint(1, 64)
    return content[:end] + content[begin:]


def oversize_header(content: bytes, rng: random.Random) -> bytes:
    """A header said to be of another length."""
    nbytes = rng.choice((0, 1, len(content) - 8, len(content), 1 << 31, 1 << 40, (1 << 64) - 1, rng.getrandbits(64)))
    return struct.pack("<Q", nbytes) + content[8:]


def other_header(content: bytes, rng: random.Random) -> bytes:
    """A header of the same length in which figures are others."""
    length = 8 + int.from_bytes(content[:8], "little")
    figures = [at for at in range(8, length) if content[at : at + 1].isdigit()]
    changed = bytearray(content)
    for at in rng.sample(figures, min(3, len(figures))):
        changed[at] = ord(str(rng.randrange(10)))
    return bytes(changed)


DAMAGES: tuple[Damage, ...] = (cut_off, prolonged, flipped, overwritten, dropped, repeated)
HEADERS: tuple[Damage, ...] = (oversize_header, other_header)


def elsewhere(manifest: dict[str, Any], rng: random.Random) -> None:
    """A path that leads out of the folder."""
    name = rng.choice(SHARDS)
    path = rng.choice(("../outside/{}", "./{}", "{}/../../outside/{}", "/etc/passwd", "//{}", "..", "", "{}\0", "{}\n"))
    other = path.format(name, name)
    manifest["files"][other] = manifest["files"].pop(name)
    for shard in _shards(manifest):
        shard["file"] = other if shard["file"] == name else shard["file"]


def another_box(manifest: dict[str, Any], rng: random.Random) -> None:
    """A piece somewhere else."""
    box = rng.choice([shard["box"] for shard in _shards(manifest) if shard["box"]])
    span = rng.choice(box)
    at = rng.randrange(2)
    span[at] += rng.choice((-1, 1, 7, -(1 << 40), 1 << 62))


def another_shape(manifest: dict[str, Any], rng: random.Random) -> None:
    """A tensor of another, or of no possible size."""
    shape = rng.choice([tensor["shape"] for tensor in manifest["tensors"].values() if tensor["shape"]])
    shape[rng.randrange(len(shape))] = rng.choice((0, -1, 1, 1 << 20, 1 << 40, 1 << 62, (1 << 63) - 1))


def another_dtype(manifest: dict[str, Any], rng: random.Random) -> None:
    """Bytes that mean something else."""
    tensor = rng.choice(list(manifest["tensors"].values()))
    known = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "object", "V8", "")
    tensor["dtype"] = rng.choice([dtype for dtype in known if dtype != tensor["dtype"]])


def fewer_pieces(manifest: dict[str, Any], rng: random.Random) -> None:
    """A piece that is nowhere."""
    shards = rng.choice(list(manifest["tensors"].values()))["shards"]
    shards.pop(rng.randrange(len(shards)))


def more_pieces(manifest: dict[str, Any], rng: random.Random) -> None:
    """A piece that is there twice."""
    shards = rng.choice([tensor["shards"] for tensor in manifest["tensors"].values() if tensor["shape"]])
    shards.append(copy.deepcopy(rng.choice(shards)))


def exchanged(manifest: dict[str, Any], rng: random.Random) -> None:
    """The key, the hash or the file of one piece in the place of another's."""
    one, other = rng.sample(list(_shards(manifest)), 2)
    field = rng.choice(("key", "sha256"))
    one[field], other[field] = other[field], one[field]


def junk(manifest: dict[str, Any], rng: random.Random) -> None:
    """Anything in the place of any value of files and tensors."""
    holders = list(_holders({"files": manifest["files"], "tensors": manifest["tensors"]}))
    holder, key = rng.choice(holders)
    values = (None, True, -1, 1.5, 10**400, "", "x" * 1000, "../x", [], {}, [[0, 1]], 1e308, 1 << 63, "\x1b[2J", "é")
    holder[key] = rng.choice(values)


def another_version(manifest: dict[str, Any], rng: random.Random) -> None:
    """A format that is not this one, or a key that it does not have."""
    key = rng.choice(("version", "unknown"))
    manifest[key] = rng.choice((0, 2, -1, 1 << 70, "1", None))


FORGERIES: tuple[Forge, ...] = (
    *(elsewhere, another_box, another_shape, another_dtype, fewer_pieces, more_pieces, exchanged, junk),
    another_version,
)
_KINDS = (*DAMAGES, *HEADERS, *FORGERIES)
QUOTAS = {
    **{kind.__name__.replace("_", " "): 0.02 for kind in _KINDS},
    "another file": 0.02,
    "refused": 0.9,
    "manifest": 0.5,
    "shard": 0.2,
}


def run(cases: int, seed: int, *, memory: bool = True) -> Outcome:
    """Read `cases` damaged checkpoints; with `memory`, also measure what reading large ones takes."""
    outcome = Outcome(QUOTAS)
    with tempfile.TemporaryDirectory() as name:
        saved, wanted = _saved(Path(name))
        whole = {path.name: path.read_bytes() for path in saved.iterdir()}
        for number in range(seed, seed + cases):
            exercised: list[str] = []
            problems = list(check(saved, whole, wanted, number, exercised))
            outcome.add(f"mutation {number} ({', '.join(exercised)})", problems, exercised)
    if memory:
        with tempfile.TemporaryDirectory() as name:
            outcome.failures += peaks_over(Path(name), LARGE_ROWS)
    return outcome


def _saved(folder: Path) -> tuple[Path, Tensors]:
    """A checkpoint of two shards, and what it holds; a copy of a shard lies outside."""
    arrays = tensors_of(1)
    assert save_on_all(folder, 1, pieces_of(arrays, len(SHARDS), {"layer.0.weight": (3, 2)})) == [None] * len(SHARDS)
    saved = folder / "step-00000001"
    shutil.copytree(saved, folder / "outside")
    return saved, arrays


def check(saved: Path, whole: Files, wanted: Tensors, number: int, exercised: list[str]) -> Iterator[str]:
    """What reading a damaged checkpoint does wrong; it is whole again afterwards."""
    rng = random.Random(number)
    changed = _another_file(saved, rng, exercised) if number % 16 == 0 else _changed(whole, rng, exercised)
    for name, content in changed.items():
        (saved / name).write_bytes(content)
    try:
        found = open_checkpoint(saved)
        held = {name: load(found, name) for name in found.manifest.tensors}
    except InputError as error:
        exercised.append("refused")
        if not str(error).isprintable():
            yield f"says what no terminal should get: {str(error)!r}"
    except Exception as error:  # noqa: BLE001 (whatever it does is a finding)
        yield f"crashed: {type(error).__name__}: {error}"
    else:
        alike = set(held) == set(wanted) and all(_same(held[name], wanted[name]) for name in wanted)
        if not alike or found.step != 1:
            yield "was loaded, and is not what was saved"
    for path in saved.iterdir():
        if path.name not in whole or path.is_symlink() or path.is_dir():
            path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
    for name, content in whole.items():
        if name in changed or not (saved / name).exists():
            (saved / name).write_bytes(content)


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def _changed(whole: Files, rng: random.Random, exercised: list[str]) -> Files:
    """Another content of one file."""
    kind = rng.choice(_KINDS)
    exercised.append(kind.__name__.replace("_", " "))
    if kind in FORGERIES:
        exercised.append("manifest")
        return {MANIFEST: _forged(whole[MANIFEST], kind, rng)}  # type: ignore[arg-type]
    name = rng.choice((MANIFEST, *SHARDS)) if kind in DAMAGES else rng.choice(SHARDS)
    exercised.append("manifest" if name == MANIFEST else "shard")
    return {name: kind(whole[name], rng)}  # type: ignore[arg-type,dict-item]


def _forged(content: bytes, forge: Forge, rng: random.Random) -> bytes:
    """A manifest changed and signed anew."""
    manifest = json.loads(content)["manifest"]
    forge(manifest, rng)
    body = json.dumps(manifest)
    return f'{{"sha256": "{hashlib.sha256(body.encode()).hexdigest()}", "manifest": {body}}}'.encode()


def _another_file(saved: Path, rng: random.Random, exercised: list[str]) -> Files:
    """No file, a link, a folder, or the other shard in the place of one."""
    exercised += ["another file", rng.choice(("manifest", "shard"))]
    name = MANIFEST if exercised[-1] == "manifest" else rng.choice(SHARDS)
    what = rng.choice(("none", "link", "folder", "the other"))
    content = (saved / SHARDS[name == SHARDS[0]]).read_bytes()
    if what == "the other":
        return {name: content}
    (saved / name).unlink()
    if what == "link" and name != MANIFEST:
        (saved / name).symlink_to(saved.parent / "outside" / name)
    elif what == "folder":
        (saved / name).mkdir()
    return {}


def _shards(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for tensor in manifest["tensors"].values():
        yield from tensor["shards"]


def _holders(value: Any) -> Iterator[tuple[Any, Any]]:
    """(what holds a value, its key there), of all values of a document."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _holders(inner)


_READ = """
import sys
from pathlib import Path
from executor.checkpoint import load, open_checkpoint
from strategy.base.errors import InputError
import numpy, safetensors
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
before = peak()
try:
    found = open_checkpoint(Path(sys.argv[1]))
    for name in found.manifest.tensors:
        load(found, name)
except InputError:
    pass
print(peak() - before)
"""


def peaks_over(folder: Path, rows: int, divisions: Sequence[int] = (1, 2)) -> Iterator[str]:
    """Readings of a large checkpoint, whole and damaged, that take more than `MOST_OF_FILE` of its file's size."""
    whole = np.random.default_rng(0).standard_normal((rows, 4096), np.float32)
    half = ((0, rows // 2), (0, 4096)), ((rows // 2, rows), (0, 4096))
    for parts in divisions:
        boxes = half if parts == 2 else (((0, rows), (0, 4096)),)
        pieces = [TensorPart("w", whole.shape, box, whole[box[0][0] : box[0][1]]) for box in boxes]
        saved = save(folder, parts, pieces, {})
        shard = saved / SHARDS[0]
        nbytes = shard.stat().st_size
        yield from _over(f"{parts} pieces", saved, nbytes)
        with shard.open("r+b") as file:
            file.seek(nbytes - 1)
            file.write(b"\x07")
        yield from _over(f"{parts} pieces, the last byte changed", saved, nbytes)
        with shard.open("r+b") as file:
            file.write(struct.pack("<Q", nbytes - 8))
        yield from _over(f"{parts} pieces, a header as long as the file", saved, nbytes)
        (saved / MANIFEST).write_bytes(b"[" * nbytes)
        yield from _over(f"{parts} pieces, a manifest as long as the file", saved, nbytes)


def _over(what: str, saved: Path, nbytes: int) -> Iterator[str]:
    command = [sys.executable, "-c", _READ, str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    if done.returncode != 0:
        yield f"{what}: crashed: {done.stderr}"
    elif int(done.stdout) > MOST_OF_FILE * nbytes:
        yield f"{what}: reading takes {int(done.stdout) / nbytes:.2f} times the size of the file"
