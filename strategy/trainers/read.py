"""Reading: a trainer's file as what is trained, with what became of each of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from strategy.base.errors import InputError
from strategy.trainers import deepspeed, llm_foundry, megatron, megatron_bridge, nanotron, nemo, torchtitan
from strategy.trainers.architecture import Architecture, PositionKind
from strategy.trainers.formats import arguments_of, document_of, flattened, read_text
from strategy.trainers.known_models import named_model
from strategy.trainers.settings import Settings
from strategy.trainers.trained import TrainedModel, TrainerName

BRIDGE = "megatron-bridge"
_ARGUMENTS = (".sh", ".txt", ".args", "")
_KINDS = (
    (str(TrainerName.TORCHTITAN), torchtitan.is_torchtitan),
    (str(TrainerName.NANOTRON), nanotron.is_nanotron),
    (str(TrainerName.LLM_FOUNDRY), llm_foundry.is_llm_foundry),
    (str(TrainerName.NEMO), nemo.is_nemo),
    (BRIDGE, megatron_bridge.is_megatron_bridge),
    (str(TrainerName.DEEPSPEED), deepspeed.is_deepspeed),
    (str(TrainerName.MEGATRON), megatron.is_megatron),
)
TRAINERS = tuple(sorted(name for name, _ in _KINDS))


@dataclass(frozen=True, slots=True)
class ReadConfiguration:
    """What a file says, and of each of its keys that nobody used, why not.

    Attributes:
        trained: what is trained, and how.
        defaults: what was taken where the file has no key.
        assumed: what was taken in place of what no key and no figure follows.
        unused: key -> why it changes neither the time of a step nor its memory.
        unpriced: key -> what it changes though no figure here follows it.
        not_understood: keys that nobody reads and nobody has reviewed.
    """

    trained: TrainedModel
    defaults: Mapping[str, Any]
    assumed: tuple[str, ...]
    unused: Mapping[str, str]
    unpriced: Mapping[str, str]
    not_understood: tuple[str, ...]


def read_configuration(
    path: Path, *, trainer: str = "", model: str = "", sequence: int = 0, gpu: str = ""
) -> ReadConfiguration:
    """A trainer's file, read.

    Args:
        path: the file; its ending says the format, and arguments of a command line have `.sh`, `.txt` or none.
        trainer: one of `TRAINERS`; found by the keys unless given.
        model: for files that name none: a preset, a known model, a `config.json`, or, for DeepSpeed's JSON, the
            arguments of the script that calls it.
        sequence: tokens of a sample, for files that do not say.
        gpu: which part counts of a file that has several.

    Raises:
        InputError: the file cannot be read, is of no known trainer, or has keys that cannot be used.
        EnvironmentLacks: it is YAML, and PyYAML is not installed.
    """
    return read_document(
        document_of(read_text(path), str(path)), path, trainer=trainer, model=model, sequence=sequence, gpu=gpu
    )


def read_document(
    document: Mapping[str, Any], path: Path, *, trainer: str = "", model: str = "", sequence: int = 0, gpu: str = ""
) -> ReadConfiguration:
    """The same of a file's content."""
    trainer = trainer or _trainer_of(document, path)
    if trainer not in TRAINERS:
        raise InputError("no such trainer", where="--from", got=trainer, expected=", ".join(TRAINERS))
    if trainer == TrainerName.MEGATRON and deepspeed.CONFIG in {key.replace("_", "-") for key in document}:
        return _called_deepspeed(document, path)
    if trainer == TrainerName.DEEPSPEED:
        settings = Settings(flattened(document), str(path), trainer)
        if model and Path(model).suffix in _ARGUMENTS and Path(model).is_file():
            return read_pair(document, arguments_of(read_text(Path(model)), model), path, Path(model))
        given = named_model(model) if model else None
        trained = deepspeed.read_deepspeed(settings, None, given, sequence)
        return _finished(trained, settings)
    settings, reader = _reader(document, path, trainer, gpu)
    trained = reader(settings, named_model(model) if model else None)
    return _finished(trained, settings)


def read_pair(
    document: Mapping[str, Any], arguments: Mapping[str, Any], path: Path, caller_path: Path
) -> ReadConfiguration:
    """DeepSpeed's JSON and the arguments of the script that calls it, read together."""
    settings = Settings(flattened(document), str(path), TrainerName.DEEPSPEED)
    caller = Settings(megatron.arguments_in(arguments), str(caller_path), TrainerName.MEGATRON)
    trained = deepspeed.read_deepspeed(settings, caller)
    return _finished(trained, settings, caller)


def _called_deepspeed(arguments: Mapping[str, Any], path: Path) -> ReadConfiguration:
    """Arguments that name DeepSpeed's file, which lies beside them."""
    name = str(megatron.arguments_in(arguments)[deepspeed.CONFIG])
    beside = path.parent / Path(name).name
    if not beside.is_file():
        hint = f"price DeepSpeed's file itself, with --model {path}"
        raise InputError("DeepSpeed's file is not beside the arguments", where=str(path), got=name, hint=hint)
    return read_pair(document_of(read_text(beside), str(beside)), arguments, beside, path)


def _trainer_of(document: Mapping[str, Any], path: Path) -> str:
    named = {key.replace("_", "-"): value for key, value in document.items()}
    for name, matches in _KINDS:
        if matches(document) or matches(named):
            return name
    expected = f"keys of one of {', '.join(TRAINERS)}"
    raise InputError("of no trainer that is known", where=str(path), expected=expected, hint="say which, with --from")


def _reader(document: Mapping[str, Any], path: Path, trainer: str, gpu: str) -> tuple[Settings, Any]:
    keys = flattened(document)
    if trainer == TrainerName.MEGATRON:
        return Settings(megatron.arguments_in(document), str(path), trainer), megatron.read_megatron
    if trainer == TrainerName.TORCHTITAN:
        if "config" in document and "module" in document:
            keys = torchtitan.overridden(document, str(path))
        return Settings(keys, str(path), trainer), torchtitan.read_torchtitan
    if trainer == TrainerName.LLM_FOUNDRY:
        return Settings(llm_foundry.plain_keys(keys), str(path), trainer), llm_foundry.read_llm_foundry
    if trainer == BRIDGE:

        def bridge(settings: Settings, model: Architecture | None) -> TrainedModel:
            return megatron_bridge.read_megatron_bridge(settings, model, gpu)

        return Settings(keys, str(path), trainer), bridge
    readers = {str(TrainerName.NANOTRON): nanotron.read_nanotron, str(TrainerName.NEMO): nemo.read_nemo}
    return Settings(keys, str(path), trainer), readers[trainer]


def _finished(trained: TrainedModel, *files: Settings) -> ReadConfiguration:
    """What is wrong with all files together is raised here."""
    for settings in files:
        settings.report()

    def merged(parts: list[dict[str, Any]]) -> Mapping[str, Any]:
        return MappingProxyType({key: value for part in parts for key, value in part.items()})

    return ReadConfiguration(
        trained,
        merged([settings.defaults for settings in files]),
        (*(line for settings in files for line in (*settings.assumed, *settings.slips())), *_stands_in(trained.model)),
        merged([settings.unused_keys() for settings in files]),
        merged([settings.unpriced() for settings in files]),
        tuple(key for settings in files for key in settings.not_understood()),
    )


def _stands_in(model: Architecture) -> list[str]:
    """What a search lays out otherwise than the file says, in words."""
    if model.positions is not PositionKind.ALIBI:
        return []
    return ["scores get no bias by distance (ALiBi): it has no parameters, and no kernel of its own where it is fused"]
