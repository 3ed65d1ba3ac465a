"""Words: a proof as one stream of int64.

Every item is a code, the lengths of its lists, its numbers and its lists:

    proof             = the number of steps, the steps, an end (a branch's parts follow it, in order)
    normalise         = 1 n ones[n] others[n]
    drop              = 2 node n choices[n] by[n]
    eliminate         = 3 node
    merge             = 4 node into
    keep rows         = 5 n rows[n]
    fix               = 6 below n nodes[n] (m choices[m])*n bound
    message bound     = 7 bits shift n units[n] m messages[m] k joined[k]
    elimination bound = 8 bits shift n units[n] m order[m]
    branch            = 9 node n (m choices[m])*n
    empty             = 10
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from strategy.base.errors import CertificateError
from strategy.ilp.certificate.proof import (
    Bound,
    Branch,
    Drop,
    Eliminate,
    EliminationBound,
    Empty,
    End,
    Fix,
    IntArray,
    KeepRows,
    Merge,
    MessageBound,
    Normalise,
    Prices,
    Proof,
    Step,
)

MAX_DEPTH = 400
"""Branches within branches."""


def proof_words(proof: Proof) -> IntArray:
    """The words of a proof.

    Raises:
        CertificateError: it branches too deep.
    """
    return np.concatenate([np.asarray(words, np.int64) for words in _proof_words(proof, 0)])


def proof_of(words: IntArray) -> Proof:
    """The proof that a stream of words is.

    Raises:
        CertificateError: it is none.
    """
    reader = _Words(words)
    found = reader.proof(0)
    reader.finish()
    return found


def _proof_words(proof: Proof, depth: int) -> Iterator[IntArray | list[int]]:
    if depth > MAX_DEPTH:
        raise CertificateError("branches within branches, too deep to be written", expected=f"at most {MAX_DEPTH}")
    yield [len(proof.steps)]
    for step in proof.steps:
        yield from _step_words(step)
    yield from _end_words(proof.end)
    if isinstance(proof.end, Branch):
        for part in proof.end.parts:
            yield from _proof_words(part, depth + 1)


def _step_words(step: Step) -> Iterator[IntArray | list[int]]:
    match step:
        case Normalise():
            yield from ([1, step.ones.size], step.ones, step.others)
        case Drop():
            yield from ([2, step.node, step.choices.size], step.choices, step.by)
        case Eliminate():
            yield [3, step.node]
        case Merge():
            yield [4, step.node, step.into]
        case KeepRows():
            yield from ([5, step.rows.size], step.rows)
        case Fix():
            yield from ([6, step.below, step.nodes.size], step.nodes)
            for choices in step.choices:
                yield from ([choices.size], choices)
            yield from _end_words(step.bound)


def _end_words(end: End) -> Iterator[IntArray | list[int]]:
    match end:
        case MessageBound():
            yield from ([7, end.prices.bits, end.prices.shift, end.prices.units.size], end.prices.units)
            yield from ([end.messages.size], end.messages)
            yield from ([end.joined.size], end.joined)
        case EliminationBound():
            yield from ([8, end.prices.bits, end.prices.shift, end.prices.units.size], end.prices.units)
            yield from ([end.order.size], end.order)
        case Branch():
            yield [9, end.node, len(end.choices)]
            for choices in end.choices:
                yield from ([choices.size], choices)
        case Empty():
            yield [10]


class _Words:
    """The stream, read from its begin to its end."""

    def __init__(self, words: IntArray) -> None:
        self._words, self._place = words, 0

    def proof(self, depth: int) -> Proof:
        """A proof, with the parts of its branch."""
        if depth > MAX_DEPTH:
            raise CertificateError("branches within branches, too deep", expected=f"at most {MAX_DEPTH}")
        steps = tuple(self._step() for _ in range(self._count()))
        end = self._end()
        if isinstance(end, Branch):
            parts = tuple(self.proof(depth + 1) for _ in end.choices)
            end = Branch(end.node, end.choices, parts)
        return Proof(steps, end)

    def finish(self) -> None:
        """Refuses what is left over."""
        if self._place < self._words.size:
            raise CertificateError("words after the end of the proof", got=self._words.size - self._place)

    def _number(self) -> int:
        return int(self._list(1)[0])

    def _count(self) -> int:
        """A length: never more than the words that are left, since everything has at least one."""
        count = self._number()
        if not 0 <= count <= self._words.size - self._place:
            raise CertificateError("a length beyond the end of the proof", where=f"word {self._place - 1}", got=count)
        return count

    def _list(self, size: int) -> IntArray:
        first, self._place = self._place, self._place + size
        if self._place > self._words.size:
            raise CertificateError("the proof ends in the middle", where=f"word {self._words.size}")
        return self._words[first : self._place]

    def _counted(self) -> IntArray:
        return self._list(self._count())

    def _step(self) -> Step:
        code = self._number()
        match code:
            case 1:
                size = self._count()
                return Normalise(self._list(size), self._list(size))
            case 2:
                node, size = self._number(), self._count()
                return Drop(node, self._list(size), self._list(size))
            case 3:
                return Eliminate(self._number())
            case 4:
                return Merge(self._number(), self._number())
            case 5:
                return KeepRows(self._counted())
            case 6:
                below, nodes = self._number(), self._counted()
                choices = tuple(self._counted() for _ in nodes)
                return Fix(self._bound(), below, nodes, choices)
        raise CertificateError("no such step", where=f"word {self._place - 1}", got=code)

    def _bound(self) -> Bound:
        end = self._end()
        if isinstance(end, (Branch, Empty)):
            raise CertificateError("not a bound", where=f"word {self._place - 1}")
        return end

    def _end(self) -> End:
        code = self._number()
        match code:
            case 7 | 8:
                bits, shift = self._number(), self._number()
                prices = Prices(self._counted(), shift, bits)
                if code == 7:
                    return MessageBound(prices, self._counted(), self._counted())
                return EliminationBound(prices, self._counted())
            case 9:
                node, size = self._number(), self._count()
                return Branch(node, tuple(self._counted() for _ in range(size)), ())
            case 10:
                return Empty()
        raise CertificateError("no such end", where=f"word {self._place - 1}", got=code)
