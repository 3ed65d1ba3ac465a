"""Bound certificate: why no configuration of a space takes less than a plan claims, to be replayed without the search.

    space      what is pinned; all else is listed anew from model and cluster (`space.configurations`)
    level 0    the least work of every configuration, by closed forms: not in the file
    level 1    what layers take on the tensor and context axes, by cuts of templates, each with its proof
    level 2    for every configuration that these leave below the bound, multipliers (`multipliers`): of paths through
               its schedule, of rows of its memory, of closed forms, of cuts of templates

In a plan it is a JSON object {`version`, `pinned`, `configurations`, `templates`, `arrays`}; `arrays` is a gzipped
safetensors document in base64, with the same bytes for the same certificate.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.base.errors import CertificateError, SbplanError
from strategy.bounds.certificate_arrays import packed, unpacked
from strategy.bounds.multipliers import Multipliers, Path, PricedForms
from strategy.bounds.point import MESSAGES, SIZE
from strategy.bounds.template_cut import TemplateCut, TemplateName
from strategy.ilp.certificate.words import proof_of, proof_words
from strategy.layout.config import Context, KeptLayers, Offload, PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.space.problem_builder import Weighing
from strategy.space.request import Pins
from strategy.space.trainer_space import TargetTrainer

VERSION = 12
KINDS = {"schedule": Schedule, "recompute": Recompute, "context": Context, "offload": Offload}
"""Words of a configuration."""
PINNED: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("dp", "tp", "cp", "ep", "pp", "micro_batch", "num_micro_batches", "virtual_stages"), int),
    **dict.fromkeys(("zero_stage", "zero_group", "zero_min_size"), int),
    **{"schedule": Schedule, "recompute": Recompute, "context": Context, "order": tuple, "trainer": TargetTrainer},
    **{"kept_layers": KeptLayers, "offload": Offload},
    "hosted": lambda cuts: tuple(tuple(map(int, cut)) for cut in cuts),
    "fit_probability": float,
}
"""What may be pinned of a space that there is a certificate of, with its type."""
FLOATS = ("memory", "shares", "prices")
"""Arrays of floating point."""
MOST_WAYS = 2
"""To treat the layers between, see `kept_layers`."""
NO_PROOF, NOTHING = -1, -1
"""In place of how many words a proof has, and of a least cost."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundCertificate:
    """See the module.

    Attributes:
        pins: of the space.
        configurations: so many the space has.
        layers: cuts of level 1.
        cuts: those of level 2.
        multipliers: place of a configuration in the space -> why it takes no less.
        illegal: place of a configuration -> that of the cut that says that none of its layouts is legal.
    """

    pins: Pins
    configurations: int
    layers: tuple[TemplateCut, ...]
    cuts: tuple[TemplateCut, ...]
    multipliers: Mapping[int, Multipliers]
    illegal: Mapping[int, int]


def pinned(pins: Pins) -> dict[str, Any]:
    """What is pinned, as JSON values.

    Raises:
        ValueError: something is pinned that certificates do not speak of.
    """
    free = Pins()
    changed = [one.name for one in dataclasses.fields(pins) if getattr(pins, one.name) != getattr(free, one.name)]
    if not set(changed) <= set(PINNED):
        raise ValueError(f"no certificate of a space with pinned {sorted(set(changed) - set(PINNED))}")
    return {name: getattr(pins, name) for name in changed}


def pins_of(found: Mapping[str, Any]) -> Pins:
    """What JSON values say is pinned.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    return Pins(**{name: PINNED[name](value) for name, value in found.items()})


def document(certificate: BoundCertificate) -> dict[str, Any]:
    """The certificate as JSON values."""
    every = (*certificate.layers, *certificate.cuts)
    names = list(dict.fromkeys(cut.template for cut in every))
    arrays = _arrays(certificate, every, {name: i for i, name in enumerate(names)})
    return {
        "version": VERSION,
        "pinned": pinned(certificate.pins),
        "configurations": certificate.configurations,
        "templates": [{"tensor_axis": one.tensor_axis, **dataclasses.asdict(one.config)} for one in names],
        "arrays": packed(arrays),
    }


def certificate_of(found: Mapping[str, Any]) -> BoundCertificate:
    """The certificate that a JSON object holds.

    Raises:
        CertificateError: it is not a whole certificate of this version.
    """
    try:
        _check_version(found["version"])
        arrays = unpacked(found["arrays"], FLOATS)
        return _read(pins_of(found["pinned"]), int(found["configurations"]), _templates(found["templates"]), arrays)
    except CertificateError:
        raise
    except (SbplanError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise CertificateError(f"not a certificate of a bound: {type(error).__name__}: {error}") from error


def _check_version(version: Any) -> None:
    if version != VERSION:
        raise CertificateError("a version that is not known", got=version, expected=f"{VERSION}")


def _arrays(
    certificate: BoundCertificate, every: Sequence[TemplateCut], places: Mapping[TemplateName, int]
) -> dict[str, npt.NDArray[Any]]:
    proofs = [None if cut.proof is None else proof_words(cut.proof) for cut in every]
    cuts = [
        (
            places[cut.template],
            cut.weighing.bits,
            cut.weighing.shift,
            NOTHING if cut.least is None else cut.least,
            NO_PROOF if words is None else words.size,
        )
        for cut, words in zip(every, proofs, strict=True)
    ]
    rows = list(certificate.multipliers.items())
    paths = [(at, path.exact, *path.times_ns) for at, each in rows for path, _ in each.paths]
    priced = [
        (at, way, is_cut, place, price)
        for at, each in rows
        for way, known in enumerate(each.known)
        for is_cut, some in ((False, known.forms), (True, known.cuts))
        for place, price in some
    ]
    return {
        "layers": np.array([len(certificate.layers)], np.int64),
        "cuts": np.array(cuts, np.int64).reshape(-1, 5),
        "weights": np.array([cut.weighing.units for cut in every], np.int64).reshape(-1, SIZE),
        "proofs": np.concatenate([np.zeros(0, np.int64), *(words for words in proofs if words is not None)]),
        "bounded": np.array([(at, len(each.memory), len(each.known)) for at, each in rows], np.int64).reshape(-1, 3),
        "memory": np.array([price for _, each in rows for price in each.memory], np.float64),
        "paths": np.array(paths, np.int64).reshape(-1, 2 + MESSAGES.stop),
        "shares": np.array([share for _, each in rows for _, share in each.paths], np.float64),
        "known": np.array([one[:-1] for one in priced], np.int64).reshape(-1, 4),
        "prices": np.array([one[-1] for one in priced], np.float64),
        "illegal": np.array(list(certificate.illegal.items()), np.int64).reshape(-1, 2),
    }


def _templates(listed: Sequence[Mapping[str, Any]]) -> list[TemplateName]:
    found = []
    for one in listed:
        values = dict(one)
        axis = values.pop("tensor_axis")
        for name, kind in KINDS.items():
            values[name] = kind(values[name])
        for name in ("recompute_values", "kept_layers", "offload_values", "tiled", "runs", "stage_order", "strides"):
            values[name] = tuple(values[name])
        found.append(TemplateName(PlanConfig(**values), bool(axis)))
    return found


def _read(
    pins: Pins, configurations: int, templates: Sequence[TemplateName], arrays: Mapping[str, npt.NDArray[Any]]
) -> BoundCertificate:
    for name, width in (("cuts", 5), ("weights", SIZE), ("paths", 2 + MESSAGES.stop), ("known", 4), ("bounded", 3)):
        if arrays[name].ndim != 2 or arrays[name].shape[1] != width:
            raise CertificateError("an array of another shape", where=f"certificate.arrays: {name}")
    words, at, every = arrays["proofs"], 0, list[TemplateCut]()
    for (template, bits, shift, least, size), units in zip(arrays["cuts"].tolist(), arrays["weights"], strict=True):
        proof = None if size == NO_PROOF else proof_of(words[at : at + size])
        at += max(size, 0)
        legal = None if least == NOTHING else least
        every.append(TemplateCut(templates[template], Weighing(units, bits, shift), legal, proof))
    if at != words.size:
        raise CertificateError("words after the last proof", got=words.size - at)
    (layers,) = arrays["layers"].tolist()
    illegal = {place: cut for place, cut in arrays["illegal"].tolist()}
    return BoundCertificate(
        pins, configurations, tuple(every[:layers]), tuple(every[layers:]), dict(_multipliers(arrays)), illegal
    )


def _multipliers(arrays: Mapping[str, npt.NDArray[Any]]) -> Iterator[tuple[int, Multipliers]]:
    """In the order in which they were written."""
    paths = zip(arrays["paths"].tolist(), arrays["shares"].tolist(), strict=True)
    by_path = {at: list(some) for at, some in itertools.groupby(paths, key=lambda pair: pair[0][0])}
    known = zip(arrays["known"].tolist(), arrays["prices"].tolist(), strict=True)
    by_known = {at: list(some) for at, some in itertools.groupby(known, key=lambda pair: pair[0][0])}
    memory = iter(arrays["memory"].tolist())
    for place, rows, ways in arrays["bounded"].tolist():
        if not 0 < ways <= MOST_WAYS:
            raise CertificateError("no number of ways", where="certificate.arrays: bounded", got=ways)
        some = by_known.get(place, [])
        yield (
            place,
            Multipliers(
                tuple((Path(tuple(times), bool(exact)), share) for (_, exact, *times), share in by_path.get(place, [])),
                tuple(itertools.islice(memory, rows)),
                tuple(_priced([(key, price) for key, price in some if key[1] == way]) for way in range(ways)),
            ),
        )


def _priced(known: Sequence[tuple[Sequence[int], float]]) -> PricedForms:
    forms, cuts = (
        tuple((at, price) for (_, _, is_cut, at), price in known if bool(is_cut) is of) for of in (False, True)
    )
    return PricedForms(forms, cuts)
