"""Listed signatures: under each of them, the op on the pieces gives the pieces of the op on the whole."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from executor.op_validation.pieces import TOLERANCE, Array, cut, error_of, join
from executor.op_validation.subject import OneRank, Subject
from executor.runtime.kernels.base import Kernels
from strategy.graph.signature import Signature, op_signatures
from strategy.sbp.sbp import NdSbp, Split, format_nd, local_box
from strategy.sbp.tensor import Shape, TensorSpec

MESHES: tuple[Shape, ...] = ((2,), (3,), (4,), (2, 2))


@dataclass(frozen=True, slots=True)
class TrialResult:
    """How the trial of one signature ended: `problem` is empty where the results were those of one device."""

    subject: Subject
    mesh: Shape
    signature: Signature
    problem: str

    @property
    def uneven(self) -> bool:
        """Whether some tensor was cut into unequal parts."""
        graph, op = self.subject.graph, self.subject.op
        specs = graph.specs((*op.inputs, *op.outputs, *op.updates))
        return any(_is_uneven(spec, nd, self.mesh) for spec, nd in zip(specs, self.signature.layouts, strict=True))

    @property
    def splits(self) -> bool:
        """Whether some tensor was cut at all."""
        return any(isinstance(sbp, Split) for nd in self.signature.layouts for sbp in nd)

    def __str__(self) -> str:
        where = f"{self.subject.kind}, example {self.subject.number}, mesh {list(self.mesh)}"
        return f"{where}: {signature_text(self.signature)}: {self.problem or 'right'}"


def _is_uneven(spec: TensorSpec, nd_sbp: NdSbp, mesh: Shape) -> bool:
    sizes = {
        tuple(end - begin for begin, end in local_box(spec.shape, nd_sbp, mesh, coords))
        for coords in itertools.product(*map(range, mesh))
    }
    return len(sizes) > 1


def signature_text(signature: Signature) -> str:
    """`S(0), B -> S(0)`; on a mesh of several axes `[S(0), B], [B, B] -> [S(0), B]`."""

    def written(layouts: Sequence[NdSbp]) -> str:
        texts = [format_nd(nd) for nd in layouts]
        return ", ".join(text[0] if len(text) == 1 else f"[{', '.join(text)}]" for text in texts)

    arrow = f"{written(signature.inputs)} -> {written(signature.outputs)}".strip()
    return arrow + (f" updates {written(signature.updates)}" if signature.updates else "")


def try_listed(
    subject: Subject, kernels: Kernels, *, meshes: Sequence[Shape] = MESHES, seed: int = 0, most: int | None = None
) -> Iterator[TrialResult]:
    """Try every listed signature of an op on every mesh; with `most`, a random choice of so many per mesh."""
    for mesh in meshes:
        listed = op_signatures(subject.graph, subject.op, mesh)
        if most is not None and len(listed) > most:
            chosen = sorted(random.Random(seed).sample(range(len(listed)), most))
            listed = tuple(listed[i] for i in chosen)
        for signature in listed:
            yield TrialResult(subject, mesh, signature, problem_of(subject, kernels, signature, mesh, seed))


def problem_of(subject: Subject, kernels: Kernels, signature: Signature, mesh: Shape, seed: int) -> str:
    """What is wrong with a signature; empty where nothing is."""
    try:
        pieces = run_pieces(subject, kernels, signature, mesh, seed)
    except Exception as error:  # noqa: BLE001 - whatever stops the meaning of an op is the finding
        return f"{type(error).__name__}: {error}"
    op = subject.op
    wanted = subject.draw(seed, kernels).results
    names = (*op.outputs, *op.updates)
    for name, parts, nd, array in zip(names, pieces, (*signature.outputs, *signature.updates), wanted, strict=True):
        problem = mismatch(parts, nd, mesh, array)
        if problem:
            return f"{name} as {', '.join(format_nd(nd))}: {problem}"
    return ""


def mismatch(parts: Sequence[Array], nd_sbp: NdSbp, mesh: Shape, wanted: Array) -> str:
    """How the pieces of a result differ from it; empty where they do not."""
    try:
        with np.errstate(all="ignore"):
            found = join(parts, nd_sbp, mesh)
    except ValueError as misfit:
        return str(misfit)
    error = error_of(found, wanted)
    return "" if error <= TOLERANCE.get(str(wanted.dtype), 0.0) else f"off by {error:.3g} of the largest element"


def run_pieces(
    subject: Subject, kernels: Kernels, signature: Signature, mesh: Shape, seed: int
) -> list[tuple[Array, ...]]:
    """Run an op on the pieces of its operands; gives per output, then per variable, the pieces of all ranks."""
    op, graph = subject.op, subject.graph
    drawn = subject.draw(seed, kernels)
    rng = np.random.default_rng(seed)
    ranks = list(itertools.product(*map(range, mesh)))

    def boxes(names: Sequence[str], layouts: Sequence[NdSbp], coords: Shape) -> list[tuple[tuple[int, int], ...]]:
        return [
            local_box(graph.values[name].spec.shape, nd, mesh, coords) for name, nd in zip(names, layouts, strict=True)
        ]

    updates = [cut(array, nd, mesh, rng) for array, nd in zip(drawn.updates, signature.updates, strict=True)]
    workers = [
        OneRank(
            subject,
            kernels,
            boxes(op.inputs, signature.inputs, coords),
            boxes(op.outputs, signature.outputs, coords),
            [pieces[index] for pieces in updates],
        )
        for index, coords in enumerate(ranks)
    ]
    with np.errstate(all="ignore"):
        for operands in drawn.inputs:
            spread = [
                cut(array, nd, mesh, rng, ragged=spec.ragged is not None)
                for array, nd, spec in zip(operands, signature.inputs, graph.specs(op.inputs), strict=True)
            ]
            for index, worker in enumerate(workers):
                worker.act([pieces[index] for pieces in spread])
    return list(zip(*(worker.results() for worker in workers), strict=True))
