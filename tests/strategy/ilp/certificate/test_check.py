"""Nothing false is accepted: random proofs against brute force, mutations of them, and forgeries one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from strategy.base.errors import CertificateError
from strategy.ilp.certificate.check import check
from strategy.ilp.certificate.digest import problem_digest
from strategy.ilp.certificate.file import read_certificate, write_certificate
from strategy.ilp.certificate.proof import (
    IMPOSSIBLE,
    Branch,
    Certificate,
    Drop,
    Eliminate,
    EliminationBound,
    Empty,
    Fix,
    KeepRows,
    Merge,
    MessageBound,
    Prices,
    Proof,
    Step,
)
from strategy.ilp.certificate.replay import replay
from strategy.ilp.certificate.words import proof_of, proof_words
from strategy.ilp.certificate.working import begin
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.ilp.solve import brute_force
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.core import NoChoiceError
from strategy.ilp.solve.reductions import reduce_core
from tests.strategy.ilp.certificate.proofs import random_certificate
from tests.strategy.ilp.problems import ladder, random_problem
from tests.support.long_parameters import long_but


def _proofs(proof: Proof) -> Iterator[Proof]:
    """A proof and the parts within it."""
    yield proof
    if isinstance(proof.end, Branch):
        for part in proof.end.parts:
            yield from _proofs(part)


@pytest.mark.parametrize("cases", long_but([120, 400], 0))
def test_whatever_is_accepted_is_true(cases: int) -> None:
    """Of random problems: no accepted proof is above the optimum, and exact ones reach it."""
    rng = random.Random(7)
    seen: Counter[str] = Counter()
    for case in range(cases):
        problem = random_problem(rng)
        oracle = brute_force(problem)
        certificate = random_certificate(problem, rng, optimum=oracle)
        verdict = check(problem, certificate)
        if oracle is not None:
            assert verdict.proved is not None, case
            assert verdict.proved <= oracle[0], case
            seen["tight"] += verdict.proved == oracle[0]
            assert check(problem, replace(certificate, lower_bound=verdict.proved)).gap is not None
            with pytest.raises(CertificateError, match=r"does not reach|above the cost"):
                check(problem, replace(certificate, lower_bound=verdict.proved + 1))
            with pytest.raises(CertificateError, match=r"above the cost|nothing is legal"):
                check(problem, replace(certificate, lower_bound=None))
        else:
            seen["infeasible, proved"] += verdict.proved is None
        for proof in _proofs(certificate.proof):
            seen.update(type(item).__name__ for item in (*proof.steps, proof.end))
    quotas = {
        "tight": 0.15, "infeasible, proved": 0.1, "Normalise": 0.1, "Drop": 0.75, "Eliminate": 0.625, "Merge": 0.1,
        "KeepRows": 0.15, "Fix": 0.15, "MessageBound": 0.25, "EliminationBound": 0.25, "Branch": 0.375, "Empty": 0.25,
    }  # fmt: skip
    assert {kind: seen[kind] for kind in quotas if seen[kind] < quotas[kind] * cases} == {}, seen


def test_a_changed_proof_is_refused_or_still_true() -> None:
    """2,000 mutations of the words of valid proofs, each written as a proof again."""
    rng = random.Random(8)
    seen: Counter[str] = Counter()
    for case in range(200):
        problem = random_problem(rng)
        oracle = brute_force(problem)
        certificate = random_certificate(problem, rng, optimum=oracle)
        words = proof_words(certificate.proof)
        for _ in range(10):
            try:
                proof = proof_of(_mutated(words, rng))
                verdict = check(problem, replace(certificate, proof=proof))
            except CertificateError:
                seen["refused"] += 1
                continue
            seen["accepted"] += 1
            if oracle is not None:
                assert verdict.proved is not None, case
                assert verdict.proved <= oracle[0], case
    assert seen["refused"] >= 800, seen
    assert seen["accepted"] >= 100, seen


def _mutated(words: np.ndarray, rng: random.Random) -> np.ndarray:
    words = words.copy()
    for _ in range(rng.choice((1, 1, 2, 5))):
        k = rng.randrange(words.size)
        kind = rng.randrange(5)
        if kind == 0:
            words[k] = max(int(words[k]), -(2**63) + 1) - 1 if rng.random() < 0.5 else min(int(words[k]), 2**63 - 2) + 1
        elif kind == 1:
            words[k] = rng.choice(
                (-1, 0, 1, 7, 10**9, 10**18, -(2**63), 2**63 - 1, int(words[rng.randrange(words.size)]))
            )
        elif kind == 2 and words.size > 1:
            words = np.delete(words, k)
        elif kind == 3:
            words = np.insert(words, k, int(words[rng.randrange(words.size)]))
        else:
            other = rng.randrange(words.size)
            words[k], words[other] = words[other], words[k]
    return words


# Three in a row that all live at one instant, at which two large ones (5 bytes) or all small ones (1 byte) fit.
# The optimum is 1 + 9 + 1 = 11: the middle one is small.
CHAIN = Problem(
    "chain",
    (
        Node("a", (1, 9), (Usage(0, 4, (5, 1)),)),
        Node("b", (1, 9, 20), (Usage(1, 3, (5, 1, 1)),)),
        Node("c", (1, 9), (Usage(2, 5, (5, 1)),)),
    ),
    (Edge(0, 1, (0, 0, 0, 3, 0, 0)), Edge(1, 2, (0, 2, 0, 0, 0, FORBIDDEN))),
    limit=11,
)
ORDER = np.array([0, 1, 2])
FREE = Prices(np.array([0]), 0, 0)
# Two per byte, in sixteenths.
PRICED = EliminationBound(Prices(np.array([32]), 4, 2), ORDER)
FIX = Fix(EliminationBound(FREE, ORDER), 12, np.array([0]), (np.array([1]),))
DROP = Drop(1, np.array([2]), np.array([1]))
LARGE = Proof((), PRICED)
SMALL = Proof((FIX,), MessageBound(FREE, np.array([0, 0, 0, 0, 0])))
CERTIFICATE = Certificate(
    problem_digest(CHAIN),
    choice=(0, 1, 0),
    cost=11,
    lower_bound=11,
    proof=Proof((KeepRows(np.array([2])), DROP), Branch(1, (np.array([0]), np.array([1])), (LARGE, SMALL))),
)


# Something without memory between the first two: joined away, it is a table of zeros over both.
LOOSE = replace(
    CHAIN,
    nodes=(*CHAIN.nodes, Node("d", (0, 0))),
    edges=(*CHAIN.edges, Edge(0, 3, (0, 4, 4, 0)), Edge(1, 3, (0, 4, 4, 0, 0, 0))),
    limit=None,
)


def _joined(*joined: int, messages: int = 7 + 5) -> Certificate:
    """A bound of 2 by messages that say nothing, with some nodes joined away."""
    nothing = Prices(np.zeros(0, np.int64), 0, 0)
    end = MessageBound(nothing, np.zeros(messages, np.int64), np.array(joined, np.int64))
    return Certificate(problem_digest(LOOSE), None, None, 3, Proof((), end))


def test_joined_nodes_bound_together() -> None:
    assert check(LOOSE, _joined(3, messages=15)).proved == 3
    # What the first and the second must pay to meet at the third is seen by their common table alone.
    raised = replace(LOOSE, edges=(*CHAIN.edges, Edge(0, 3, (0, 4, 4, 0)), Edge(1, 3, (4, 0, 4, 0, 4, 0))))
    seen = replace(_joined(3, messages=15), problem=problem_digest(raised), lower_bound=4)
    with pytest.raises(CertificateError, match="does not reach its bound"):
        check(raised, replace(seen, lower_bound=4))


@pytest.mark.parametrize(
    ("problem", "certificate", "words"),
    [
        (LOOSE, _joined(3), "messages that do not fit"),
        (LOOSE, _joined(3, 3, messages=15), "not ascending"),
        (LOOSE, _joined(7, messages=15), "no such node is left"),
        (LOOSE, _joined(1, 3, messages=15), "so is a neighbour"),
    ],
)
def test_a_join_that_does_not_fit_is_refused(problem: Problem, certificate: Certificate, words: str) -> None:
    with pytest.raises(CertificateError, match=words):
        check(problem, certificate)


def test_what_holds_memory_is_not_joined_away() -> None:
    end = MessageBound(FREE, np.zeros(5, np.int64), np.array([0]))
    with pytest.raises(CertificateError, match="node 0 is joined away, but it holds memory"):
        check(CHAIN, replace(CERTIFICATE, proof=Proof((KeepRows(np.array([2])),), end)))


def _with_step(step: Step) -> Certificate:
    """The certificate with another step in place of its drop."""
    return replace(CERTIFICATE, proof=replace(CERTIFICATE.proof, steps=(CERTIFICATE.proof.steps[0], step)))


def _with_parts(*parts: tuple[list[int], Proof]) -> Certificate:
    """The certificate with other parts of its branch."""
    branch = Branch(1, tuple(np.array(choices) for choices, _ in parts), tuple(proof for _, proof in parts))
    return replace(CERTIFICATE, proof=replace(CERTIFICATE.proof, end=branch))


def _with_large(end: EliminationBound | MessageBound | Empty) -> Certificate:
    """The certificate with another end of its first part."""
    return _with_parts(([0], Proof((), end)), ([1], SMALL))


def test_the_chain_is_proved() -> None:
    verdict = check(CHAIN, CERTIFICATE)
    assert (verdict.cost, verdict.lower_bound, verdict.proved, verdict.gap) == (11, 11, 11, 0.0)
    assert (verdict.leaves, verdict.steps) == (2, 3)


def test_what_is_not_named_does_not_matter() -> None:
    renamed = replace(CHAIN, name="x", nodes=tuple(replace(node, name="y") for node in CHAIN.nodes))
    assert check(renamed, CERTIFICATE).proved == 11


FORGERIES: dict[str, tuple[Callable[[], Certificate], str]] = {
    "a raised bound": (
        lambda: replace(CERTIFICATE, lower_bound=12, choice=None, cost=None),
        r"part 0: the proof does not reach its bound \(got 'a proof of 11', expected at least 12\)",
    ),
    "a bound above the cost": (lambda: replace(CERTIFICATE, lower_bound=12), "the bound is above the cost"),
    "nothing is said to be legal": (
        lambda: replace(CERTIFICATE, lower_bound=None, choice=None, cost=None),
        "it says that nothing is legal, which does not follow",
    ),
    "a dropped leaf": (lambda: _with_parts(([1], SMALL)), r"leave out choices of node 1 \(got \[0\]\)"),
    "no leaves": (lambda: _with_parts(), "leave out choices"),
    "a part that does not cover": (lambda: _with_parts(([1], LARGE), ([1], SMALL)), "leave out choices"),
    "a part with a choice that is not there": (lambda: _with_parts(([0], LARGE), ([1, 2], SMALL)), "not there"),
    "a leaf said to be empty": (lambda: _with_large(Empty()), r"part 0, end \(Empty\): something may still be legal"),
    "steeper prices": (
        lambda: _with_large(EliminationBound(Prices(np.array([64]), 4, 2), ORDER)),
        r"part 0: the proof does not reach its bound \(got 'a proof of 8'",
    ),
    "a negative price": (
        lambda: _with_large(EliminationBound(Prices(np.array([-32]), 4, 2), ORDER)),
        "a negative price",
    ),
    "a price for a row that is not there": (
        lambda: _with_large(EliminationBound(Prices(np.array([32, 0]), 4, 2), ORDER)),
        "prices that do not fit the rows",
    ),
    "prices finer than their scale": (
        lambda: _with_large(EliminationBound(Prices(np.array([32]), 4, 5), ORDER)),
        "scales out of range",
    ),
    "a scale that overflows": (
        lambda: _with_large(EliminationBound(Prices(np.array([32]), 70, 60), ORDER)),
        "the scale is too fine",
    ),
    "changed messages": (
        lambda: _with_parts(([0], LARGE), ([1], Proof((FIX,), MessageBound(FREE, np.array([0, 0, 0, 0, 5]))))),
        r"part 1: the proof does not reach its bound \(got 'a proof of 6'",
    ),
    "messages of another length": (
        lambda: _with_parts(([0], LARGE), ([1], Proof((FIX,), MessageBound(FREE, np.array([0, 0, 0, 0]))))),
        "messages that do not fit the tables",
    ),
    "an order without a node": (
        lambda: _with_large(EliminationBound(FREE, np.array([0, 2]))),
        "an elimination order that is not one of the live nodes",
    ),
    "a legal choice dropped as impossible": (
        lambda: _with_step(Drop(1, np.array([2]), np.array([IMPOSSIBLE]))),
        r"step 1 \(Drop\): choice 2 of node 1 is dropped, but it is possible",
    ),
    "the optimum's choice dropped": (
        lambda: _with_step(Drop(1, np.array([1, 2]), np.array([0, 0]))),
        "choice 1 of node 1 is dropped, but choice 0 does not beat it",
    ),
    "the smaller choice dropped": (
        lambda: _with_step(Drop(0, np.array([1]), np.array([0]))),
        "choice 1 of node 0 is dropped, but choice 0 does not beat it",
    ),
    "choices that beat each other": (
        lambda: _with_step(Drop(1, np.array([1, 2]), np.array([2, 1]))),
        "beaten by what is not there",
    ),
    "a fix that its bound does not show": (
        lambda: _with_parts(([0], LARGE), ([1], Proof((replace(FIX, below=100),), SMALL.end))),
        r"part 1, step 0 \(Fix\): choice 1 of node 0 is dropped, but it may cost less than 100",
    ),
    "a fix against less": (
        lambda: _with_parts(([0], LARGE), ([1], Proof((replace(FIX, below=10),), SMALL.end))),
        r"part 1, step 0 \(Fix\): the proof does not reach its bound \(got 'a proof of 10'",
    ),
    "a node with memory eliminated": (lambda: _with_step(Eliminate(0)), "node 0 is eliminated, but it holds memory"),
    "a node that is free to choose merged": (lambda: _with_step(Merge(0, 1)), "whose choice does not determine it"),
    "a node merged into a stranger": (lambda: _with_step(Merge(0, 2)), "nothing is between them"),
    "a node that is not there": (lambda: _with_step(Eliminate(3)), "no such node is left"),
    "a row that is not there": (lambda: _with_step(KeepRows(np.array([1]))), "rows that are not ascending"),
    "a cheaper choice": (lambda: replace(CERTIFICATE, cost=10, lower_bound=10), "the choice costs something else"),
    "a choice that is too large": (lambda: replace(CERTIFICATE, choice=(0, 0, 0), cost=3), "the choice holds too much"),
    "a forbidden choice": (lambda: replace(CERTIFICATE, choice=(1, 2, 1)), "the choice is forbidden"),
    "a choice without an option": (lambda: replace(CERTIFICATE, choice=(0, 3, 0)), "no such option"),
    "a choice without a node": (lambda: replace(CERTIFICATE, choice=(0, 1)), "a choice of the wrong length"),
    "a choice without its cost": (lambda: replace(CERTIFICATE, cost=None), "a choice without its cost"),
    "another problem": (
        lambda: replace(CERTIFICATE, problem=problem_digest(replace(CHAIN, limit=12))),
        "it is about another problem",
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_is_refused(forgery: str, tmp_path: Path) -> None:
    """Written to a file, which has no seal but the problem's digest, and read back."""
    forged, message = FORGERIES[forgery]
    write_certificate(tmp_path / "forged", forged())
    with pytest.raises(CertificateError, match=message):
        check(CHAIN, read_certificate(tmp_path / "forged"))


def test_a_proof_of_another_problem_does_not_hold_for_this_one() -> None:
    """Even if it says that it is about this one: with a looser limit, three large ones are best."""
    looser = replace(CHAIN, limit=15)
    with pytest.raises(CertificateError, match=r"does not reach its bound \(got 'a proof of 3'"):
        check(looser, replace(CERTIFICATE, problem=problem_digest(looser)))


def test_numbers_that_would_wrap_around_are_refused() -> None:
    large = 3 * 10**17
    problem = Problem("large", (Node("a", (large, 0)), Node("b", (large, 0))), (Edge(0, 1, (large, 0, 0, 0)),), None)
    claim = Certificate(
        problem_digest(problem), None, None, 0, Proof((Eliminate(0),), EliminationBound(FREE, np.array([1])))
    )
    with pytest.raises(CertificateError, match="too large to be exact"):
        check(problem, claim)
    larger = replace(problem, edges=(Edge(0, 1, (5 * 10**17, 0, 0, 0)),))
    with pytest.raises(CertificateError, match="too large to be added exactly"):
        check(larger, replace(claim, problem=problem_digest(larger)))


def test_replaying_reductions_gives_the_core() -> None:
    """Tables, rows and spans are the solver's own, and costs are, up to a constant per node."""
    rng = random.Random(9)
    compared = 0
    problems = [ladder(rungs=12, seed=seed, limit=2 * 10**9) for seed in range(3)]
    for problem in (*problems, *(random_problem(rng) for _ in range(100))):
        try:
            core = build_core(problem)
            reduce_core(core)
        except NoChoiceError:
            continue
        work = begin(problem)
        for step in core.steps:
            replay(work, step)
        assert work.room.tolist() == core.room.tolist()
        assert set(work.costs) == set(core.costs)
        for node, cost in core.costs.items():
            legal = cost < FORBIDDEN
            assert ((work.costs[node] < FORBIDDEN) == legal).all()
            assert np.ptp((work.costs[node] - cost)[legal]) == 0
            assert set(work.tables[node]) == set(core.tables[node])
            assert all((work.tables[node][other] == table).all() for other, table in core.tables[node].items())
            assert {rows: held.tolist() for rows, held in work.spans[node].items()} == {
                rows: held.tolist() for rows, held in core.spans[node].items()
            }
            compared += 1
    assert compared >= 100
