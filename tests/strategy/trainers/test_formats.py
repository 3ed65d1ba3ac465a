"""Formats: argument lines, tables and what is written."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from strategy.base.errors import EnvironmentLacks, InputError
from strategy.trainers.formats import arguments_of, as_arguments, as_toml, document_of, flattened, read_text


def test_a_command_line_is_its_arguments() -> None:
    text = """torchrun pretrain_gpt.py \\
        --num-layers 32 --bf16   # a comment
        --lr=1.5e-4 --split 949,50,1 --train_samples 300_000 --seed -1
        --rampup-batch-size 16 16 5_000 --num-layers 24
    """
    assert arguments_of(text, "x.sh") == {
        "num-layers": 24, "bf16": True, "lr": 1.5e-4, "split": "949,50,1", "train-samples": 300000, "seed": -1,
        "rampup-batch-size": "16 16 5_000",
    }  # fmt: skip


def test_what_is_written_is_read_back() -> None:
    found = {"num-layers": 2, "bf16": True, "fp16": False, "lr": 0.1, "moe-layer-freq": "[0]*1+[1]*3"}
    assert arguments_of(as_arguments(found), "x") == {key: value for key, value in found.items() if value is not False}
    tables = {"model": {"name": 'a "b"', "converters": ["float8"]}, "training": {"lr": 1e-8, "on": True}}
    assert tomllib.loads(as_toml(tables)) == tables


def test_nested_keys_are_flat() -> None:
    assert flattened({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("[a", "x.toml", "cannot be read as TOML"), ("{", "x.json", "JSON"), ("[1]", "x.json", "a trainer's"),
        ("a: [", "x.yaml", "cannot be read as YAML"), ("'a", "x.sh", "as arguments"), ("words", "x.sh", "no arguments"),
    ],
)  # fmt: skip
def test_what_is_no_configuration_is_told(text: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        document_of(text, name)


def test_without_pyyaml_the_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(EnvironmentLacks, match=r"pip install 'sbplan\[trainers\]'"):
        document_of("a: 1", "x.yaml")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_text(tmp_path / "none.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        read_text(tmp_path / "b.toml")
