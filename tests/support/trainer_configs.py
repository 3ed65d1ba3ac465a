"""The published configurations that come with the project, each with the file or the name that its model is in."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strategy.trainers.formats import arguments_of, document_of, read_text
from strategy.trainers.read import ReadConfiguration, read_document, read_pair

ROOT = Path(__file__).parents[2] / "experiments" / "reference" / "trainer_configs"
NOTHING_TO_TRAIN = ("mcli-1b", *(f"model_flavors__{family}" for family in
                                 ("deepseek_v3", "gpt_oss", "llama3", "llama4", "qwen3")))  # fmt: skip
MODELS = {
    "habana_bert_1.5b": "bert-1.5b", "habana_bert_5b": "bert-5b", "habana_bf16": "gpt3-175b",
    "habana_llama2_70b_zero3": "llama2-70b", "juniper_llama2_70b_lora": "llama2-70b", "dlperf_zero2": "gpt2",
    "mds_finetune_hf_llama": "llama2-7b", "mds_curriculum_z1_baseline": "gpt2", "mds_universal_ckpt": "gpt2",
    "jz_ds_zero0": "gpt2", "jz_ds_zero2": "gpt2", "jz_ds_zero3": "gpt2",
}  # fmt: skip
"""DeepSpeed's files whose callers are not there: the model that the index names, or any."""
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ShippedConfiguration:
    """One configuration: its file, the arguments that call it if there are such."""

    path: Path
    caller: Path | None = None

    @property
    def name(self) -> str:
        """Folder and file."""
        return f"{self.path.parent.name}/{self.path.name}"

    def documents(self) -> list[Document]:
        """The file's content, and the caller's."""
        own = document_of(read_text(self.path), str(self.path))
        if self.caller is None:
            return [own]
        return [own, arguments_of(read_text(self.caller), str(self.caller))]

    def read(self, documents: list[Document]) -> ReadConfiguration:
        """Read the configuration with this content."""
        if self.caller is None:
            return read_document(documents[0], self.path, model=MODELS.get(self.path.stem, ""))
        return read_pair(documents[0], documents[1], self.path, self.caller)


def shipped_configurations() -> list[ShippedConfiguration]:
    """All of them, by name."""
    found = []
    for path in sorted(ROOT.glob("*/*")):
        if path.stem not in NOTHING_TO_TRAIN and not path.name.endswith("__args.sh"):
            caller = path.with_name(f"{path.stem}__args.sh")
            found.append(ShippedConfiguration(path, caller if caller.exists() else None))
    return found


def keys_of(document: Document, ahead: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path of a key, its value)."""
    for key, value in document.items():
        if isinstance(value, dict) and value:
            yield from keys_of(value, (*ahead, key))
        else:
            yield (*ahead, key), value


def changed(document: Document, path: tuple[str, ...], value: Any) -> Document:
    """A copy with another value."""
    found = copy.deepcopy(dict(document))
    inner: Any = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return found


def another(key: str, value: Any) -> Any:
    """Another value of the same kind: one that rounding does not undo."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 7 * value or 1
    if isinstance(value, float):
        return 2 * value + 1
    if isinstance(value, list):
        return [*value, "another"]
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "false"
    # Another tokenizer that is known; one that is not may well have as many words.
    return "gpt2" if key.endswith("tokenizer-model") else "another"


def names_of(path: tuple[str, ...]) -> set[str]:
    """The names by which a reading may list a key."""
    last = path[-1].lstrip("-").replace("_", "-")
    return {".".join(path), last, f"env.{path[-1]}", ".".join(path).removeprefix("parameters.")}


def all_keys(rng: random.Random | None = None) -> list[tuple[ShippedConfiguration, int, tuple[str, ...]]]:
    """(configuration, which of its files, key) of every key of every configuration that has a value."""
    found = [
        (one, place, path)
        for one in shipped_configurations()
        for place, document in enumerate(one.documents())
        for path, value in keys_of(document)
        if value is not None and value != "auto" and value != {}
    ]
    if rng is not None:
        rng.shuffle(found)
    return found
