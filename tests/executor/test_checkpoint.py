from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import shutil
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from executor.checkpoint import Reader, TensorPart, latest, load, open_checkpoint, save
from executor.checkpoint.manifest import File, LogicalTensor, Manifest, Shard, check_manifest
from executor.checkpoint.shard_file import read_header
from strategy.base.errors import InputError, RunError
from strategy.sbp.tensor import Box, DType, Shape

Arrays = dict[str, NDArray[Any]]


def tensors_of(step: int, rows: int = 12) -> Arrays:
    draw = np.random.Generator(np.random.Philox(step))
    return {
        "layer.0.weight": draw.standard_normal((rows, 10), np.float32),
        "layer.0.weight.moment": draw.standard_normal((rows, 10)),
        "tokens": draw.integers(0, 1 << 40, (7,)),
        "scale": np.array(float(step), np.float32),
        "half": draw.standard_normal((5, 3)).astype(DType.BFLOAT16.numpy),
        "narrow": draw.standard_normal(4).astype(np.float16),
    }


def cut(shape: Shape, parts: tuple[int, ...]) -> list[Box]:
    """The boxes of an uneven mesh `parts` over the dims of `shape`."""
    edges = [[size * index // count for index in range(count + 1)] for size, count in zip(shape, parts, strict=True)]
    return [tuple(box) for box in product(*map(pairwise, edges))]


def pieces_of(arrays: Arrays, ranks: int, parts: dict[str, tuple[int, ...]]) -> list[list[TensorPart]]:
    """The pieces of every rank: boxes dealt out in turn."""
    dealt: list[list[TensorPart]] = [[] for _ in range(ranks)]
    turn = 0
    for name, array in arrays.items():
        for box in cut(array.shape, parts.get(name, (1,) * array.ndim)):
            cells = tuple(slice(begin, end) for begin, end in box)
            dealt[turn % ranks].append(TensorPart(name, array.shape, box, array[cells]))
            turn += 1
    return dealt


def save_on_all(folder: Path, step: int, dealt: list[list[TensorPart]]) -> list[BaseException | None]:
    """`save` as every rank calls it, one thread per rank; what each of them raised."""
    ranks = len(dealt)
    barrier = threading.Barrier(ranks)
    votes = [True] * ranks
    raised: list[BaseException | None] = [None] * ranks

    def run(rank: int) -> None:
        def all_ok(ok: bool) -> bool:
            votes[rank] = ok
            barrier.wait(10)
            agreed = all(votes)
            barrier.wait(10)
            return agreed

        try:
            save(folder, step, dealt[rank], {"plan": "abc", "seed": 1}, rank=rank, ranks=ranks, all_ok=all_ok)
        except Exception as error:  # noqa: BLE001 (handed to the test)
            raised[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def save_alone(folder: Path, step: int, rows: int = 12) -> Path:
    (pieces,) = pieces_of(tensors_of(step, rows), 1, {"layer.0.weight": (3, 2)})
    return save(folder, step, pieces, {"seed": 1})


def assert_holds(folder: Path, step: int, rows: int = 12) -> None:
    found = latest(folder)
    assert found is not None
    assert found.step == step
    for name, array in tensors_of(step, rows).items():
        read = load(found, name)
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(("ranks", "parts"), [(1, (1, 1)), (2, (2, 1)), (3, (5, 3)), (4, (1, 4))])
def test_any_mesh_loads_what_another_saved(tmp_path: Path, ranks: int, parts: tuple[int, ...]) -> None:
    arrays = tensors_of(20)
    assert save_on_all(tmp_path, 20, pieces_of(arrays, ranks, {"layer.0.weight": parts})) == [None] * ranks
    found = latest(tmp_path)
    assert found is not None
    assert (found.step, found.meta) == (20, {"plan": "abc", "seed": 1})
    assert_holds(tmp_path, 20)
    for other in product((1, 2, 3, 7), (1, 2, 5)):
        for box in cut((12, 10), other):
            cells = tuple(slice(begin, end) for begin, end in box)
            np.testing.assert_array_equal(load(found, "layer.0.weight", box), arrays["layer.0.weight"][cells])


def test_only_the_overlapping_shards_are_read(tmp_path: Path) -> None:
    save_on_all(tmp_path, 1, pieces_of({"w": np.arange(8, dtype=np.float32)}, 2, {"w": (2,)}))
    found = latest(tmp_path)
    assert found is not None
    (found.folder / "rank-1.safetensors").unlink()
    np.testing.assert_array_equal(load(found, "w", ((1, 4),)), [1, 2, 3])
    with pytest.raises(InputError, match="cannot be read"):
        load(found, "w", ((1, 5),))


def test_the_same_state_is_the_same_bytes(tmp_path: Path) -> None:
    contents = [
        {path.name: path.read_bytes() for path in save_alone(tmp_path / name, 3).iterdir()} for name in ("a", "b")
    ]
    assert contents[0] == contents[1]
    assert sorted(contents[0]) == ["manifest.json", "rank-0.safetensors"]


def test_the_newest_is_the_latest_and_a_step_saved_again_is_newer(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    for step in (9, 10, 2):
        save_alone(tmp_path, step)
    assert_holds(tmp_path, 10)
    assert save_alone(tmp_path, 10).name == "step-00000010.1"
    assert_holds(tmp_path, 10)
    found = latest(tmp_path)
    assert found is not None
    assert found.folder.name == "step-00000010.1"


def test_an_unfinished_one_is_not_a_checkpoint_and_is_cleared_away(tmp_path: Path) -> None:
    save_alone(tmp_path, 1)
    draft = tmp_path / "step-00000002.tmp"
    draft.mkdir()
    (draft / "rank-5.safetensors").write_bytes(b"half")
    assert_holds(tmp_path, 1)
    save_alone(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    found = open_checkpoint(save_alone(tmp_path, 1))
    with pytest.raises(InputError, match="no such tensor"):
        load(found, "other")
    for box in (((0, 13), (0, 10)), ((3, 3), (0, 1)), ((0, 1),)):
        with pytest.raises(InputError, match="not inside the tensor"):
            load(found, "layer.0.weight", box)


@pytest.mark.parametrize("name", ["manifest.json", "rank-0.safetensors"])
def test_a_truncated_or_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    path = save_alone(tmp_path, 1) / name
    content = path.read_bytes()
    for size in (0, 1, len(content) // 2, len(content) - 2):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match="remove step-00000001 to start anew"):
            latest(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=name):
        latest(tmp_path)


def rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and sign it anew, as somebody with bad intent would."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())["manifest"]
    change(manifest)
    body = json.dumps(manifest)
    path.write_text(f'{{"sha256": "{hashlib.sha256(body.encode()).hexdigest()}", "manifest": {body}}}')


def _rename_file(name: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["files"] = {name: manifest["files"]["rank-0.safetensors"]}
        for tensor in manifest["tensors"].values():
            for shard in tensor["shards"]:
                shard["file"] = name

    return change


def _drop_shard(manifest: dict[str, Any]) -> None:
    manifest["tensors"]["layer.0.weight"]["shards"].pop(2)


def _double_shard(manifest: dict[str, Any]) -> None:
    shards = manifest["tensors"]["layer.0.weight"]["shards"]
    shards[1] = shards[0]


def _grow(manifest: dict[str, Any]) -> None:
    manifest["tensors"]["tokens"]["shape"] = [1 << 62, 1 << 62]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_rename_file("../step-00000001/rank-0.safetensors"), "not the name of a shard file"),
        (_rename_file("/etc/passwd"), "not the name of a shard file"),
        (_rename_file("rank-0.safetensors\n"), "not the name of a shard file"),
        (_rename_file("rank-7.safetensors"), "missing"),
        (_drop_shard, "do not cover"),
        (_double_shard, "overlap"),
        (_grow, "not inside the tensor"),
        (lambda manifest: manifest["tensors"]["tokens"].update(dtype="object"), "not a manifest of ours"),
        (lambda manifest: manifest.update(version=99), "unknown version"),
        (lambda manifest: manifest["files"].clear(), "unknown file"),
        (lambda manifest: manifest.update(step=-5), "not a possible step"),
        (lambda manifest: manifest.update(step=2**70), "not a possible step"),
        (lambda manifest: manifest.update(step=10**8), "not a possible step"),
        (lambda manifest: manifest["tensors"]["tokens"].update(shape=[1] * 9), "not a possible shape"),
        (lambda manifest: manifest["tensors"]["tokens"].update(shape=[-1, -1]), "not a possible shape"),
    ],
)
def test_a_hostile_manifest_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], None], problem: str) -> None:
    folder = save_alone(tmp_path, 1)
    rewrite_manifest(folder, change)
    with pytest.raises(InputError, match=problem):
        open_checkpoint(folder)


@pytest.mark.parametrize("key", ["step", "tokens", "sha256"])
def test_a_key_that_a_manifest_has_twice_is_refused(tmp_path: Path, key: str) -> None:
    folder = save_alone(tmp_path, 1)
    path = folder / "manifest.json"
    signed = json.loads(path.read_text())
    body = json.dumps(signed["manifest"])
    if key != "sha256":
        start = body.index(f'"{key}":')
        value = json.dumps(signed["manifest"].get(key, signed["manifest"]["tensors"].get(key)))
        body = f'{body[:start]}"{key}": {value}, {body[start:]}'
    twice = '"sha256": "", ' if key == "sha256" else ""
    digest = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(f'{{{twice}"sha256": "{digest}", "manifest": {body}}}')
    with pytest.raises(InputError, match=f"key '{key}' is given twice in one object"):
        open_checkpoint(folder)


@pytest.mark.parametrize("parts", [(1, 30_000), (100, 300)])
def test_thirty_thousand_shards_are_checked_in_linear_time(tmp_path: Path, parts: tuple[int, int]) -> None:
    """Each compared with each would take minutes."""
    shards = tuple(Shard("rank-0.safetensors", "w", box, "") for box in cut(parts, parts))
    (tmp_path / "rank-0.safetensors").touch()
    manifest = Manifest(
        1, 1, {}, {"rank-0.safetensors": File(0, "")}, {"w": LogicalTensor(parts, DType.FLOAT32, shards)}
    )
    began_s = time.process_time()
    check_manifest(tmp_path, manifest)
    assert time.process_time() - began_s < 10
    lacking = LogicalTensor(parts, DType.FLOAT32, (*shards[1:], shards[1]))
    with pytest.raises(InputError, match="overlap"):
        check_manifest(tmp_path, msgspec.structs.replace(manifest, tensors={"w": lacking}))


def test_a_reader_looks_at_a_header_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header is as long as a file has pieces: read for every piece, it would cost their square."""
    looked = []
    real = read_header
    monkeypatch.setattr(
        "executor.checkpoint.reading.read_header", lambda path: (looked.append(path.name), real(path))[1]
    )
    save_on_all(tmp_path, 1, pieces_of(tensors_of(1), 2, {"layer.0.weight": (6, 5)}))
    found = latest(tmp_path)
    assert found is not None
    reader = Reader(found)
    for name, array in tensors_of(1).items():
        np.testing.assert_array_equal(reader.load(name), array)
    assert sorted(looked) == ["rank-0.safetensors", "rank-1.safetensors"]


def test_a_file_that_is_cut_off_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file would end the process with SIGBUS."""
    found = open_checkpoint(save_alone(tmp_path, 1, rows=10_000))
    path = found.folder / "rank-0.safetensors"
    held = path.stat().st_size
    real = np.empty

    def cut_off(*shape: Any) -> NDArray[Any]:
        os.truncate(path, held // 2)
        return real(*shape)

    monkeypatch.setattr(np, "empty", cut_off)
    with pytest.raises(InputError, match="the file ends inside of a piece"):
        load(found, "layer.0.weight.moment")


def _other_dtype(pieces: dict[str, Any]) -> None:
    pieces["w[0:4]"]["dtype"] = "I32"


def _other_shape(pieces: dict[str, Any]) -> None:
    pieces["w[0:4]"]["shape"] = [2, 2]


def _beyond(pieces: dict[str, Any]) -> None:
    pieces["w[0:4]"]["data_offsets"] = [1 << 40, (1 << 40) + 16]


def _before(pieces: dict[str, Any]) -> None:
    pieces["w[0:4]"]["data_offsets"] = [-16, 0]


def _shorter(pieces: dict[str, Any]) -> None:
    pieces["w[0:4]"]["data_offsets"] = [0, 12]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_other_dtype, "not what the manifest says"),
        (_other_shape, "not what the manifest says"),
        (_beyond, "outside of its file"),
        (_before, "outside of its file"),
        (_shorter, "outside of its file"),
        (dict.clear, "not what the manifest says"),
        (lambda pieces: pieces.update(other=7), "not a header of safetensors"),
    ],
)
def test_a_hostile_header_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], None], problem: str) -> None:
    """Signed anew with the manifest: what the header says of a piece is compared all the same."""
    part = TensorPart("w", (4,), ((0, 4),), np.arange(4, dtype=np.float32))
    folder = save(tmp_path, 1, [part], {})
    path = folder / "rank-0.safetensors"
    content = path.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    pieces = json.loads(content[8:length])
    change(pieces)
    header = json.dumps(pieces).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[length:])

    def sign(manifest: dict[str, Any]) -> None:
        manifest["files"][path.name] = {"nbytes": path.stat().st_size, "header_sha256": read_header(path).sha256}

    rewrite_manifest(folder, sign)
    with pytest.raises(InputError, match=problem):
        load(open_checkpoint(folder), "w")


def test_pieces_that_overlap_as_much_as_they_leave_out_are_refused(tmp_path: Path) -> None:
    """As many elements as the tensor has, in a pinwheel with one wing turned; and the true pinwheel."""
    whole = np.arange(9, dtype=np.float32).reshape(3, 3)
    boxes: list[Box] = [((0, 1), (0, 2)), ((0, 2), (2, 3)), ((2, 3), (1, 3)), ((1, 3), (0, 1)), ((1, 2), (1, 2))]
    for wing, problem in ((boxes[3], None), (((1, 2), (0, 2)), "overlap"), (((0, 2), (0, 1)), "overlap")):
        pieces = [
            TensorPart("w", (3, 3), box, whole[tuple(slice(*bounds) for bounds in box)])
            for box in (*boxes[:3], wing, boxes[4])
        ]
        if problem is None:
            np.testing.assert_array_equal(load(open_checkpoint(save(tmp_path, 1, pieces, {})), "w"), whole)
        else:
            with pytest.raises(InputError, match=problem):
                save(tmp_path, 2, pieces, {})


@pytest.mark.parametrize("content", [b"[" * 1_000_000, b'{"sha256": "\xe3a', b"null", b"{}"])
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = save_alone(tmp_path, 1)
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(InputError, match="not a manifest of ours"):
        open_checkpoint(folder)


def test_a_link_in_place_of_a_shard_is_refused(tmp_path: Path) -> None:
    folder = save_alone(tmp_path, 1)
    (folder / "rank-0.safetensors").rename(tmp_path / "elsewhere")
    (folder / "rank-0.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="not a plain file"):
        open_checkpoint(folder)


def test_an_oversize_header_is_refused_without_reading_it(tmp_path: Path) -> None:
    found = open_checkpoint(save_alone(tmp_path, 1))
    path = found.folder / "rank-0.safetensors"
    content = path.read_bytes()
    for nbytes in (len(content) + 1, 1 << 40, (1 << 64) - 1):
        path.write_bytes(struct.pack("<Q", nbytes) + content[8:])
        with pytest.raises(InputError, match="header is larger"):
            load(found, "scale")


def test_pieces_that_do_not_tile_are_not_saved(tmp_path: Path) -> None:
    whole = np.zeros((4, 4), np.float32)
    half = TensorPart("w", (4, 4), ((0, 2), (0, 4)), whole[:2])
    with pytest.raises(InputError, match="do not cover"):
        save(tmp_path, 1, [half], {})
    raised = save_on_all(tmp_path, 1, [[half], [half]])
    assert isinstance(raised[0], InputError)
    assert isinstance(raised[1], RunError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_disk_that_fails_at_any_write_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, rank: int
) -> None:
    save_alone(tmp_path, 1)
    dealt = pieces_of(tensors_of(2), 2, {"layer.0.weight": (2, 1)})
    real, failed = os.fsync, threading.Event()
    for at in range(20):
        count = Counter[str]()
        failed.clear()

        def fsync(descriptor: int, at: int = at, count: Counter[str] = count) -> None:
            path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
            if ("rank-1" in path) == (rank == 1):
                count["calls"] += 1
                if count["calls"] == at + 1:
                    failed.set()
                    raise OSError(code, os.strerror(code))
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
        raised = save_on_all(tmp_path, 2, dealt)
        monkeypatch.undo()
        if not failed.is_set():
            break
        assert all(isinstance(error, RunError) for error in raised)
        assert os.strerror(code) in str(raised[rank])
        if latest_step(tmp_path) == 2:  # the folder had its name, only its durability is in doubt
            shutil.rmtree(tmp_path / "step-00000002")
        assert_holds(tmp_path, 1)
    assert at == (4, 1)[rank]
    assert_holds(tmp_path, 2)


def latest_step(folder: Path) -> int:
    found = latest(folder)
    return found.step if found else -1


def test_a_full_disk_is_one_message(tmp_path: Path) -> None:
    """A real limit, on the size of files, met inside the library that writes them."""
    save_alone(tmp_path, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(RunError, match="earlier ones are untouched") as caught:
            save_alone(tmp_path, 2, rows=1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.exit_code == 6
    assert_holds(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_manifest_of_unlikely_size_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = save_alone(tmp_path, 1)
    monkeypatch.setattr("executor.checkpoint.reading._MANIFEST_LIMIT", 100)
    with pytest.raises(InputError, match="too large for a manifest"):
        open_checkpoint(made)


def test_a_part_that_is_not_of_its_box_is_not_saved(tmp_path: Path) -> None:
    part = TensorPart("weight", (4, 4), ((0, 2), (0, 4)), np.zeros((4, 4), np.float32))
    with pytest.raises(InputError, match="not of its box's shape"):
        save(tmp_path, 1, [part], {})
    assert latest(tmp_path) is None


def test_ranks_that_disagree_on_a_tensor_save_nothing(tmp_path: Path) -> None:
    boxes: tuple[Box, Box] = ((0, 2),), ((2, 4),)
    parts = [
        [TensorPart("weight", (4,), box, np.zeros(2, dtype))]
        for box, dtype in zip(boxes, (np.float32, np.float64), strict=True)
    ]
    raised = save_on_all(tmp_path, 1, parts)
    assert any(isinstance(error, InputError) and "ranks disagree" in str(error) for error in raised)
    assert all(error is not None for error in raised)
    assert latest(tmp_path) is None


def test_the_newest_are_kept_and_leavings_are_cleared_away(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_alone(tmp_path, step)
    (tmp_path / "step-00000007.tmp").mkdir()
    (tmp_path / "step-mine.tmp").mkdir()
    (pieces,) = pieces_of(tensors_of(4), 1, {})
    save(tmp_path, 4, pieces, {}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004", "step-mine.tmp"]
    assert_holds(tmp_path, 4)


def test_what_holds_a_new_folder_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())), real(fd))[1]
    )
    save_alone(tmp_path / "a" / "b", 1)
    assert synced[:2] == [str(tmp_path), str(tmp_path / "a")]
    assert synced[-1] == str(tmp_path / "a" / "b")
