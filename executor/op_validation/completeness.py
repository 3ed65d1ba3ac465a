"""Completeness of signatures: what an op does not list is wrong, or stands in `completeness.toml` with a reason.

Over one axis, of 2 ranks and of 3, every operand and every result is given each of B, S(d) for its dims, P(sum),
P(max) and P(min), the partial ones where its dtype has terms. One run of the op decides for results that are read as
copies and as terms alike. Where more than `most` runs are needed, those are made that differ from a listed signature in
one tensor, and of the others a seeded choice that fills up to `most`.

Not counted as unlisted is what follows from a listed signature because equal copies are terms of a maximum:
an operand B where P(max) or P(min) is listed, a result P(max) or P(min) where B is. Nor is what follows because every
row of a ragged tensor knows its place: rows that are split are terms too, and all rows serve where a part is listed.
"""

from __future__ import annotations

import itertools
import math
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import strategy.graph.ops
from executor.op_validation.signatures import mismatch, run_pieces
from executor.op_validation.subject import Subject
from executor.runtime.kernels.base import Kernels
from strategy.base.errors import InputError
from strategy.graph.signature import Signature, op_signatures
from strategy.sbp.sbp import B, NdSbp, P, Partial, Reduce, Sbp, Split, is_legal_layout, may_be_partial
from strategy.sbp.tensor import Shape, TensorSpec

MESHES: tuple[Shape, ...] = ((2,), (3,))
MOST = 600
SEEDS = (1, 2, 3)
"""A combination is called right only if it is right for operands of each of these."""
_EXTREME = (Partial(Reduce.MAX), Partial(Reduce.MIN))
_TERMS = (P, *_EXTREME)
_WHOLE = (B, *_TERMS)
"""What a rank that holds a tensor of full shape may hold."""
ANY_KIND = "*"
"""The table of reasons that hold for every kind."""
REASONS = Path(strategy.graph.ops.__file__).with_name("completeness.toml")


@dataclass(frozen=True, slots=True)
class CompletenessCheck:
    """What became of the combinations of one subject on one mesh: how many were tried, and which of them were right."""

    subject: Subject
    mesh: Shape
    tried: int
    combinations: int
    exhaustive: bool
    right: tuple[Signature, ...]


def check_completeness(
    subject: Subject, kernels: Kernels, *, meshes: Sequence[Shape] = MESHES, seed: int = 0, most: int = MOST
) -> Iterator[CompletenessCheck]:
    """Try what an op does not list. One run decides for all ways to read its results: as copies, or as terms."""
    count = len(subject.op.inputs), len(subject.op.inputs) + len(subject.op.outputs)
    for mesh in meshes:
        listed = op_signatures(subject.graph, subject.op, mesh)
        options = _options(subject, mesh)
        held = [
            [sbp for sbp in sbps if sbp not in _TERMS] if count[0] <= i < count[1] else sbps
            for i, sbps in enumerate(options)
        ]
        found: dict[Signature, None] = {}
        tried = 0
        for flat in _chosen(held, [_whole_results(signature) for signature in listed], random.Random(seed), most):
            results = [
                [sbp for sbp in options[i] if sbp in _WHOLE] if flat[i] == B else [flat[i]] for i in range(*count)
            ]
            readings = [
                _signature(subject, (*flat[: count[0]], *read, *flat[count[1] :]))
                for read in itertools.product(*results)
            ]
            unlisted = [s for s in readings if not any(_follows(subject, s, known) for known in listed)]
            tried += len(unlisted)
            right = _right(subject, kernels, unlisted, mesh, SEEDS[0])
            found.update(
                dict.fromkeys(
                    s for s in right if all(_right(subject, kernels, [s], mesh, again) for again in SEEDS[1:])
                )
            )
        exhaustive = math.prod(map(len, held)) <= most
        yield CompletenessCheck(subject, mesh, tried, math.prod(map(len, options)), exhaustive, tuple(found))


def _right(
    subject: Subject, kernels: Kernels, signatures: Sequence[Signature], mesh: Shape, seed: int
) -> list[Signature]:
    """Those under which the op computes what it does on one device; they differ in how results are read alone."""
    if not signatures:
        return []
    try:
        pieces = run_pieces(subject, kernels, signatures[0], mesh, seed)
    except Exception:  # noqa: BLE001 - whatever stops the meaning of an op shows that the combination fails
        return []
    wanted = subject.draw(seed, kernels).results
    known: dict[tuple[int, NdSbp], bool] = {}

    def reads_right(position: int, layout: NdSbp) -> bool:
        if (position, layout) not in known:
            known[position, layout] = not mismatch(pieces[position], layout, mesh, wanted[position])
        return known[position, layout]

    return [s for s in signatures if all(reads_right(i, nd) for i, nd in enumerate((*s.outputs, *s.updates)))]


def _options(subject: Subject, mesh: Shape) -> list[list[Sbp]]:
    """Per tensor of the op, the SBPs that it can have over the one axis of `mesh`."""
    graph, op = subject.graph, subject.op
    return [_sbps(spec, mesh) for spec in graph.specs((*op.inputs, *op.outputs, *op.updates))]


def _sbps(spec: TensorSpec, mesh: Shape) -> list[Sbp]:
    splits: list[Sbp] = [
        Split(dim) for dim in range(len(spec.shape)) if is_legal_layout(spec.shape, (Split(dim),), mesh)
    ]
    return [B, *splits, *(term for term in _TERMS if may_be_partial(spec, term.reduce))]


def _whole_results(signature: Signature) -> tuple[Sbp, ...]:
    """A signature as one SBP per tensor, results that are terms taken for whole."""
    outputs = (B if nd[0] in _TERMS else nd[0] for nd in signature.outputs)
    return (*(nd[0] for nd in signature.inputs), *outputs, *(nd[0] for nd in signature.updates))


def _chosen(
    options: Sequence[Sequence[Sbp]], listed: Sequence[tuple[Sbp, ...]], rng: random.Random, most: int
) -> Iterator[tuple[Sbp, ...]]:
    count = math.prod(map(len, options))
    if count <= most:
        yield from itertools.product(*options)
        return
    chosen: dict[tuple[Sbp, ...], None] = {}
    for flat in listed:
        for position, sbps in enumerate(options):
            chosen.update(dict.fromkeys((*flat[:position], sbp, *flat[position + 1 :]) for sbp in sbps))
    if len(chosen) > most:
        chosen = dict.fromkeys(rng.sample(list(chosen), most))
    while len(chosen) < most:
        chosen[tuple(rng.choice(sbps) for sbps in options)] = None
    yield from chosen


def _signature(subject: Subject, flat: Sequence[Sbp]) -> Signature:
    layouts: list[NdSbp] = [(sbp,) for sbp in flat]
    first = len(subject.op.inputs)
    second = first + len(subject.op.outputs)
    return Signature(tuple(layouts[:first]), tuple(layouts[first:second]), tuple(layouts[second:]))


def _follows(subject: Subject, signature: Signature, listed: Signature) -> bool:
    """Whether a signature is the listed one, or right because that one is."""
    op, specs = subject.op, subject.graph.specs
    reads = zip(specs(op.inputs), signature.inputs, listed.inputs, strict=True)
    writes = zip(specs(op.outputs), signature.outputs, listed.outputs, strict=True)
    return (
        signature.updates == listed.updates
        and all(found == known or _serves(spec, found[0], known[0]) for spec, found, known in reads)
        and all(found == known or _serves(spec, known[0], found[0]) for spec, found, known in writes)
    )


def _serves(spec: TensorSpec, held: Sbp, wanted: Sbp) -> bool:
    """Whether what a rank has where a tensor is laid out as `held` does for `wanted` as it is."""

    def by_rows(sbp: Sbp) -> bool:
        return spec.ragged is not None and isinstance(sbp, Split) and sbp.dim < len(spec.shape) - 1

    return (held == B and (wanted in _EXTREME or by_rows(wanted))) or (by_rows(held) and wanted == P)


@cache
def read_reasons(path: Path = REASONS) -> Mapping[str, Mapping[str, str]]:
    """Kind -> pattern of signatures that are right and not listed -> why they are not.

    Raises:
        InputError: the file is no such table.
    """
    found = tomllib.loads(path.read_text())
    for kind, entries in found.items():
        if not isinstance(entries, dict) or not all(isinstance(reason, str) and reason for reason in entries.values()):
            raise InputError("not a table of signature = reason", where=f"{path}: [{kind}]", got=entries)
    return found


def reason_for(reasons: Mapping[str, Mapping[str, str]], kind: str, text: str) -> str:
    """The pattern that excuses what `text` says of a kind, a signature mostly; empty where there is none."""
    patterns = (*reasons.get(kind, {}), *reasons.get(ANY_KIND, {}))
    return next((pattern for pattern in patterns if fnmatchcase(text, pattern)), "")
