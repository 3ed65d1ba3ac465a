"""Files that are no programs, or hostile ones: one message each, that names the file and what is wrong."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.models import find_model
from tests.campaigns import program_fuzz
from tests.campaigns.program_fuzz import _joined, _split
from tests.pytorch.programs import FOLDER
from tests.support.long_parameters import long_but

Document = dict[str, Any]


def archive_of(path: Path, change: Callable[[Document], None] = lambda _: None, **more: bytes) -> Path:
    """The small Qwen, its program changed, with more entries."""
    with zipfile.ZipFile(FOLDER / "qwen.pt2") as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            content = source.read(name)
            if "/models/" in name:
                document = json.loads(content)
                change(document)
                content = json.dumps(document).encode()
            target.writestr(name, content)
        for name, content in more.items():
            target.writestr(name, content)
    return path


def nodes(document: Document) -> list[Document]:
    found: list[Document] = document["graph_module"]["graph"]["nodes"]
    return found


def test_the_archive_that_is_changed_is_read(tmp_path: Path) -> None:
    assert find_model(str(archive_of(tmp_path / "m.pt2"))).parameters == 16416


def _unknown(document: Document) -> None:
    for node in nodes(document)[-3:]:
        node["target"] = "torch.ops.aten.fft_rfft.default"
    nodes(document)[-4]["target"] = "torch.ops.mine.\x1b[31mop.default"


def _cycle(document: Document) -> None:
    nodes(document).reverse()


def _shape(document: Document) -> None:
    values = document["graph_module"]["graph"]["tensor_values"]
    values["p_model_lm_head_weight"]["sizes"] = [{"as_int": 1 << 60}, {"as_int": 1 << 60}]


def _dtype(document: Document) -> None:
    document["graph_module"]["graph"]["tensor_values"]["p_model_lm_head_weight"]["dtype"] = 29


def _schema(document: Document) -> None:
    document["schema_version"]["major"] = 99


def _loop(document: Document) -> None:
    nodes(document)[-1]["target"] = "torch.ops.higher_order.while_loop"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _unknown,
            r"2 problems\n.*aten.fft_rfft.default is not in the table.*: used 3 times, first at node",
        ),
        (_cycle, "reads a value that nothing writes before"),
        (_shape, "no tensor has this shape"),
        (_dtype, "an unknown dtype"),
        (_schema, "an unknown schema .got 99, expected 7, 8"),
        (_loop, "higher_order.while_loop is not in the table of operators"),
    ],
)
def test_programs_that_say_what_cannot_be(tmp_path: Path, change: Callable[[Document], None], message: str) -> None:
    path = archive_of(tmp_path / "m.pt2", change)
    with pytest.raises(InputError, match=message) as found:
        find_model(str(path))
    assert str(found.value).startswith(str(path))


def test_archives_that_are_none_or_lead_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "text.pt2").write_text("no zip\n")
    (tmp_path / "empty.pt2").write_bytes(b"")
    whole = (FOLDER / "qwen.pt2").read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    archive_of(tmp_path / "outside.pt2", **{"../../etc/passwd": b"x"})
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive_of(tmp_path / "twice.pt2", **{"qwen/archive_format": b"pt2"})
    with zipfile.ZipFile(tmp_path / "bomb.pt2", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bomb:
        bomb.writestr("m/models/model.json", bytes(300 * 2**20))
    with zipfile.ZipFile(tmp_path / "nameless.pt2", "w") as nameless:
        nameless.writestr(zipfile.ZipInfo(""), b"x")
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as other:
        other.writestr("data.pkl", b"\x80\x02.")
    wanted = {
        "text.pt2": "not a zip archive",
        "empty.pt2": "not a zip archive",
        "cut.pt2": "not a zip archive",
        "outside.pt2": "an entry is outside of the archive .got '../../etc/passwd'",
        "twice.pt2": "the archive has an entry twice",
        "bomb.pt2": "too large",
        "nameless.pt2": "the archive has an entry without a name",
        "other.pt2": "not a torch.export file",
        "nowhere.pt2": "no such file",
    }
    for name, message in wanted.items():
        with pytest.raises(InputError, match=f"{name}.*{message}"):
            find_model(str(tmp_path / name))


def test_pickled_tensors_are_refused_by_name(tmp_path: Path) -> None:
    """A constant that the program reads; pickles are never opened."""
    with zipfile.ZipFile(FOLDER / "qwen.pt2") as source, zipfile.ZipFile(tmp_path / "m.pt2", "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("constants_config.json"):
                content = content.replace(b'"use_pickle": false', b'"use_pickle": true')
            target.writestr(name, content)
    with pytest.raises(InputError, match=r"constants/tensor_0: a pickle, which is not read"):
        find_model(str(tmp_path / "m.pt2"))


def test_the_older_layout_is_planned_without_its_pickles(tmp_path: Path) -> None:
    with zipfile.ZipFile(FOLDER / "vit.pt2") as source, zipfile.ZipFile(tmp_path / "m.pt2", "w") as target:
        program = next(name for name in source.namelist() if "/models/" in name)
        target.writestr("serialized_exported_program.json", source.read(program))
        target.writestr("serialized_state_dict.pt", b"\x80\x02.")
    assert find_model(str(tmp_path / "m.pt2")) == find_model(str(FOLDER / "vit.pt2"))


def onnx_with(path: Path, number: int, value: int | bytes) -> Path:
    """The small Qwen with another field of the model."""
    parts = [(n, v) for n, v in _split((FOLDER / "qwen.onnx").read_bytes()) if n != number]
    path.write_bytes(_joined([*parts, (number, value)]))
    return path


@pytest.mark.parametrize(("opset", "message"), [(9, "got 9, expected 13 to 24"), (99, "got 99, expected 13 to 24")])
def test_operator_sets_too_old_and_too_new(tmp_path: Path, opset: int, message: str) -> None:
    path = onnx_with(tmp_path / "m.onnx", 8, _joined([(2, opset)]))
    with pytest.raises(InputError, match=message):
        find_model(str(path))


def test_tensors_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(64))
    (tmp_path / "inside").mkdir()
    entries = [_joined([(1, b"location"), (2, b"../secret")])]
    tensor = _joined([(1, 4), (2, 1), (8, b"w"), *[(13, one) for one in entries], (14, 1)])
    value = _joined([(1, b"value"), (5, tensor), (20, 4)])
    node = _joined([(2, b"y"), (4, b"Constant"), (5, value)])
    path = tmp_path / "inside" / "m.onnx"
    path.write_bytes(_joined([(7, _joined([(1, node)])), (8, _joined([(2, 20)]))]))
    with pytest.raises(InputError, match=r"a tensor outside of the model's folder .got '../secret'"):
        find_model(str(path))


def test_graphs_inside_of_nodes_and_functions_are_listed(tmp_path: Path) -> None:
    given = _joined([(1, b"x"), (2, _joined([(1, _joined([(1, 1), (2, _joined([(1, _joined([(2, b"b")]))]))]))]))])
    first = _joined([(1, b"x"), (2, b"y"), (4, b"If")])
    second = _joined([(1, b"y"), (2, b"z"), (4, b"Mine"), (7, b"my.domain")])
    graph = _joined([(1, first), (1, second), (11, given), (12, _joined([(1, b"z")]))])
    (tmp_path / "m.onnx").write_bytes(_joined([(7, graph), (8, _joined([(2, 20)]))]))
    with pytest.raises(InputError, match=r"2 problems\n.*onnx.If is not in.*\n.*onnx.my.domain.Mine is not"):
        find_model(str(tmp_path / "m.onnx"))


def test_text_is_no_onnx(tmp_path: Path) -> None:
    for content in (b"", b"hello, world\n", b"\x08\x07"):
        (tmp_path / "m.onnx").write_bytes(content)
        with pytest.raises(InputError, match=r"m\.onnx"):
            find_model(str(tmp_path / "m.onnx"))


@pytest.mark.parametrize("cases", long_but([20, 120], 0))
def test_damaged_programs_are_read_or_refused(cases: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A seeded part of `python -m tests.campaigns program-fuzz`."""
    outcome = program_fuzz.run(cases, seed=5)
    with capsys.disabled():
        print(dict(outcome.coverage))
    assert outcome.failures == []
    assert outcome.unmet() == []


def test_what_the_campaign_must_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that crashes, and one that does not end."""

    def crashes(text: str) -> None:
        raise KeyError(text)

    def hangs(text: str) -> None:
        while True:
            pass

    monkeypatch.setattr(program_fuzz, "read_program", crashes)
    assert all("KeyError" in failure for failure in program_fuzz.run(3, seed=5).failures)
    monkeypatch.setattr(program_fuzz, "read_program", hangs)
    monkeypatch.setattr(program_fuzz, "LONGEST_S", 0.1)
    assert ["TimeoutError" in failure for failure in program_fuzz.run(2, seed=5).failures] == [True, True]
