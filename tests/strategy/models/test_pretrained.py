"""A file of weights becomes our parameters, name by name; a file of another model is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from executor.runtime.initialize import given_piece
from strategy.base.errors import InputError
from strategy.graph.graph import Role, Value
from strategy.models import find_model
from strategy.models.gpt import GptConfig
from strategy.models.pretrained import by_head, open_pretrained
from strategy.sbp.tensor import DType, Rate, TensorSpec
from tests.support.reference import Array

MODEL = GptConfig(layers=2, width=6, heads=3, sequence=4, vocabulary=5)


def tensors(prefix: str = "") -> dict[str, Array]:
    """Random tensors of a GPT-2 as Hugging Face names and shapes them."""
    w, rng = MODEL.width, np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (MODEL.vocabulary, w), "wpe.weight": (MODEL.sequence, w)}
    shapes |= {"ln_f.weight": (w,), "ln_f.bias": (w,)}
    maps = {"attn.c_attn": (w, 3 * w), "attn.c_proj": (w, w), "mlp.c_fc": (w, 4 * w), "mlp.c_proj": (4 * w, w)}
    for layer in range(MODEL.layers):
        for name, shape in maps.items():
            shapes |= {f"h.{layer}.{name}.weight": shape, f"h.{layer}.{name}.bias": shape[1:]}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{layer}.{name}.weight": (w,), f"h.{layer}.{name}.bias": (w,)}
    return {prefix + name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def written(folder: Path, held: Mapping[str, Array]) -> Path:
    """The file of some tensors."""
    path = folder / "weights.safetensors"
    save_file(dict(held), path)
    return path


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_every_parameter_has_its_tensor(tmp_path: Path, prefix: str) -> None:
    theirs = tensors(prefix)
    mask = {
        f"{prefix}h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32),
        "lm_head.weight": theirs[f"{prefix}wte.weight"],
    }
    ours = open_pretrained(written(tmp_path, {**theirs, **mask}), MODEL)
    wanted = {name: parameter.shape for name, parameter in MODEL.module().parameters()}
    assert {name: array.shape for name, array in ours.items()} == wanted
    assert len(ours) == len(theirs)
    assert sum(array.size for array in ours.values()) == MODEL.parameters
    assert np.array_equal(ours["layers.1.mlp.fc2.weight"], theirs[f"{prefix}h.1.mlp.c_proj.weight"])
    assert np.array_equal(ours["norm.bias"], theirs[f"{prefix}ln_f.bias"])


def test_projections_are_ordered_by_head() -> None:
    heads, dim = 3, 2
    theirs = np.array([f"{part}{head}{i}" for part in "qkv" for head in range(heads) for i in range(dim)])
    wanted = [f"{part}{head}{i}" for head in range(heads) for part in "qkv" for i in range(dim)]
    assert by_head(theirs, heads).tolist() == wanted
    assert by_head(np.stack([theirs, theirs]), heads).tolist() == [wanted, wanted]


def test_a_shorter_context_takes_the_first_positions(tmp_path: Path) -> None:
    theirs = tensors()
    short = GptConfig(MODEL.layers, MODEL.width, MODEL.heads, 3, MODEL.vocabulary)
    assert np.array_equal(open_pretrained(written(tmp_path, theirs), short)["position"], theirs["wpe.weight"][:3])


def test_all_problems_of_a_file_are_in_one_report(tmp_path: Path) -> None:
    held = tensors()
    del held["ln_f.bias"]
    held["h.0.ln_1.weight"] = np.zeros(7, np.float32)
    held["wpe.weight"] = held["wpe.weight"][:2]
    held["h.1.mlp.c_fc.bias"] = held["h.1.mlp.c_fc.bias"].astype(np.int32)
    held["h.2.ln_1.weight"] = np.zeros(6, np.float32)
    with pytest.raises(InputError, match="5 problems") as caught:
        open_pretrained(written(tmp_path, held), MODEL)
    for reason in (
        r"ln_f.bias: the tensor is missing; it becomes norm.bias",
        r"h.0.ln_1.weight: another shape (got (7,), expected (6,))",
        r"wpe.weight: another shape (got (2, 6), expected (4, 6))",
        r"h.1.mlp.c_fc.bias: another dtype (got 'I32', expected BF16, F16, F32, F64)",
        r"h.2.ln_1.weight: the model has no such tensor",
    ):
        assert reason in str(caught.value)


def test_an_untied_head_is_refused(tmp_path: Path) -> None:
    held = tensors()
    held["lm_head.weight"] = held["wte.weight"] + 1
    with pytest.raises(InputError, match=r"lm_head.weight: the head differs from the embedding"):
        open_pretrained(written(tmp_path, held), MODEL)


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"no tensors at all", b"\x10\x00\x00\x00\x00\x00\x00\x00{}"):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(InputError, match="the file cannot be read"):
            open_pretrained(tmp_path / "bad", MODEL)
    with pytest.raises(InputError, match="the file cannot be read"):
        open_pretrained(tmp_path / "missing", MODEL)
    with pytest.raises(InputError, match=r"no layout of pretrained weights is known \(got 'MlpConfig', expected a GPT"):
        open_pretrained(tmp_path / "missing", find_model("mlp-tiny"))


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_weights_in_halves_are_read(tmp_path: Path, dtype: DType) -> None:
    theirs = {name: array.astype(dtype.numpy) for name, array in tensors().items()}
    ours = open_pretrained(written(tmp_path, theirs), MODEL)
    value = Value("norm.weight", TensorSpec((MODEL.width,)), Rate.STEP, Role.VARIABLE)
    piece = given_piece(value, ((1, 4),), ours["norm.weight"])
    assert piece.dtype == np.float32
    assert np.array_equal(piece, theirs["ln_f.weight"][1:4].astype(np.float32))
