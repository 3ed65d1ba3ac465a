"""Reading a config: which table it is for, and the model that this makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path

from strategy.base.errors import InputError
from strategy.base.files import read_json
from strategy.models.base import Preset
from strategy.models.huggingface import encoders, gemma, gpt, llama, mixtures
from strategy.models.huggingface.decoders import Make
from strategy.models.huggingface.keys import IGNORED, Keys

FILE = "config.json"
MOST_BYTES = 2**20
"""Of a config; those that are published are a thousandth of it."""
BATCH_TOKENS = 4 * 2**20
"""Of a step at most, unless samples per step are given, whose number is a power of two, so that many ranks can share
them: as Llama 2 (Touvron et al. 2023, arXiv:2307.09288, section 2.2)."""
MOST_SAMPLES = 4096
"""Of a step, likewise: as ViT (Dosovitskiy et al. 2021, arXiv:2010.11929, section 4.1)."""

TABLES: Mapping[str, Callable[[Keys, int | None], Make]] = {
    **llama.TABLES,
    **mixtures.TABLES,
    **gemma.TABLES,
    **gpt.TABLES,
    **encoders.TABLES,
}
"""`model_type` -> what reads its keys."""


def is_config(text: str) -> bool:
    """Whether a text names a folder or a JSON file rather than a model of ours."""
    return text.endswith(".json") or Path(text).is_dir()


def config_name(text: str) -> str:
    """What a model is called that a folder or file describes."""
    path = Path(text).resolve()
    return path.parent.name if path.name == FILE else path.stem if path.suffix == ".json" else path.name


def _family_hint(family: str) -> str:
    """What to do about a family that is not known: a slip is put right; another version or branch is no slip."""
    near = get_close_matches(family, TABLES, n=1, cutoff=0.8)
    if near and re.findall(r"\d+", near[0]) == re.findall(r"\d+", family):
        return f"did you mean {near[0]!r}?"
    return "a model of another family can be given as a program of torch.export or ONNX (docs/programs.md)"


def read_config(text: str, *, sequence: int | None = None) -> Preset:
    """The model of a folder with a `config.json`, or of such a file.

    Args:
        text: the path.
        sequence: tokens per sample; those of the context unless given.

    Raises:
        InputError: it cannot be read, is of no known `model_type`, or has keys that are unknown, wrong or contradict
            one another; all of them in one message.
    """
    path = Path(text) / FILE if Path(text).is_dir() else Path(text)
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise InputError("too large", where=str(path), got=path.stat().st_size, expected=f"at most {MOST_BYTES} bytes")
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError("not a config", where=str(path), got=type(content).__name__, expected="a JSON object")
    family = content.get("model_type")
    if not isinstance(family, str) or family not in TABLES:
        hint, expected = _family_hint(str(family)), ", ".join(sorted(TABLES))
        where = f"{path}: model_type"
        raise InputError("no such family of models is known", where=where, got=family, expected=expected, hint=hint)
    keys = Keys(content, str(path))
    make = TABLES[family](keys, sequence)
    keys.close(ignored=IGNORED)
    keys.report()
    try:
        model = make()
    except InputError as error:
        raise InputError(str(error), where=str(path)) from error
    samples = min(MOST_SAMPLES, max(1, BATCH_TOKENS // model.tokens_per_sample))
    return Preset(model, 1 << samples.bit_length() - 1)
