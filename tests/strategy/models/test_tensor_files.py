"""Weights in several files: an index names them, and files elsewhere are not opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from strategy.base.errors import InputError
from strategy.models.tensor_files import INDEX, ONE_FILE, Recipe, files_of, held_in, opened


def test_a_folder_means_its_index_or_its_one_file(tmp_path: Path) -> None:
    save_file({"a": np.zeros(2, np.float32)}, tmp_path / ONE_FILE)
    assert files_of(tmp_path) == [tmp_path / ONE_FILE]
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert files_of(tmp_path) == [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    assert files_of(tmp_path / INDEX) == files_of(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "not an index of files"),
        ({"weight_map": {"a": "../elsewhere.safetensors"}}, "not an index of files"),
        ({"weight_map": {"a": "/etc/passwd"}}, "not an index of files"),
        ({"weight_map": {"a": 1}}, "not an index of files"),
        ([], "not an index of files"),
        ({"weight_map": {"a": "gone.safetensors"}}, "the file cannot be read"),
    ],
)
def test_an_index_names_files_beside_it_alone(tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        held_in(tmp_path)


def test_a_folder_without_weights_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the folder holds no weights"):
        held_in(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_file({"a": np.zeros(2, np.float32)}, tmp_path / f"{name}.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    with pytest.raises(InputError, match="a tensor is there twice"):
        held_in(tmp_path)


def test_a_parameter_may_be_made_of_several_tensors(tmp_path: Path) -> None:
    save_file({"a": np.ones(2, np.float32), "b": np.full(2, 3, np.float32)}, tmp_path / ONE_FILE)
    held = held_in(tmp_path)
    recipe = Recipe((("a", (2,)), ("b", (2,))), lambda sources: np.stack(list(sources)))
    found = opened(tmp_path, held, {"ours": recipe}, lambda name: False)
    assert found["ours"].tolist() == [[1, 1], [3, 3]]
    assert (list(found), len(found)) == (["ours"], 1)
    with pytest.raises(InputError, match="b: the model has no such tensor"):
        opened(tmp_path, held, {"ours": Recipe((("a", (2,)),), lambda sources: sources[0])}, lambda name: False)
