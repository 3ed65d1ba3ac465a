"""The independent checker of a certificate: no search, no code of the solver, exact integers throughout.

The choice is evaluated, the proof is replayed: every step must be valid where it stands, the parts of a branch must
cover the node, and what the leaves prove must be at least what the certificate claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from strategy.base.errors import CertificateError
from strategy.ilp.certificate.bounds import least
from strategy.ilp.certificate.digest import problem_digest
from strategy.ilp.certificate.proof import Branch, Certificate, Empty, Fix, IntArray, Proof
from strategy.ilp.certificate.replay import check_choices, replay
from strategy.ilp.certificate.working import Working, begin, legal
from strategy.ilp.problem import FORBIDDEN, Problem, evaluate


@dataclass(frozen=True, slots=True)
class CheckedCertificate:
    """What an accepted certificate shows; `lower_bound` is None where nothing is legal.

    `proved` may be more than the `lower_bound` that the certificate claims.
    """

    cost: int | None
    lower_bound: int | None
    proved: int | None
    leaves: int
    steps: int

    @property
    def gap(self) -> float | None:
        """(cost - lower bound) / cost; None without a choice."""
        if self.cost is None or self.lower_bound is None:
            return None
        return (self.cost - self.lower_bound) / max(abs(self.cost), 1)


def check(problem: Problem, certificate: Certificate) -> CheckedCertificate:
    """Accepts what `certificate` says about `problem`.

    Raises:
        CertificateError: anything that does not follow, with the step or leaf.
    """
    digest = problem_digest(problem)
    if certificate.problem != digest:
        raise CertificateError("it is about another problem", got=certificate.problem, expected=digest)
    _check_choice(problem, certificate)
    walk = prove(problem, certificate.proof, certificate.lower_bound)
    return CheckedCertificate(certificate.cost, certificate.lower_bound, walk.least, walk.leaves, walk.steps)


def prove(problem: Problem, proof: Proof, claimed: int | None) -> Walk:
    """Replays a proof that nothing legal costs less than `claimed`; None: that nothing is legal.

    Raises:
        CertificateError: it does not follow, with the step or leaf.
    """
    work = begin(problem)
    walk = Walk(_most(work))
    walk.run(work, proof)
    if claimed is None and walk.least is not None:
        raise CertificateError(
            "it says that nothing is legal, which does not follow",
            where=walk.where,
            got=f"a bound of {walk.least}",
        )
    if claimed is not None and walk.least is not None and walk.least < claimed:
        raise CertificateError(
            "the proof does not reach its bound",
            where=walk.where,
            got=f"a proof of {walk.least}",
            expected=f"at least {claimed}",
        )
    return walk


def _check_choice(problem: Problem, certificate: Certificate) -> None:
    choice, cost = certificate.choice, certificate.cost
    if choice is None or cost is None:
        if choice is not None or cost is not None:
            raise CertificateError("a choice without its cost, or a cost without its choice")
        return
    if len(choice) != len(problem.nodes):
        raise CertificateError("a choice of the wrong length", got=len(choice), expected=f"{len(problem.nodes)}")
    for i, (node, pick) in enumerate(zip(problem.nodes, choice, strict=True)):
        if not 0 <= pick < len(node.costs):
            raise CertificateError("no such option", where=f"choice of node {i}", got=pick)
    value = evaluate(problem, choice)
    if value.cost >= FORBIDDEN:
        raise CertificateError("the choice is forbidden", got=f"a cost of {value.cost}")
    if problem.limit is not None and value.peak > problem.limit:
        raise CertificateError("the choice holds too much", got=value.peak, expected=f"at most {problem.limit} bytes")
    if value.cost != cost:
        raise CertificateError("the choice costs something else", got=f"{cost} claimed", expected=f"{value.cost}")
    if certificate.lower_bound is None or certificate.lower_bound > cost:
        raise CertificateError("the bound is above the cost", got=certificate.lower_bound, expected=f"at most {cost}")


def _most(work: Working) -> int:
    """The sum of the largest legal entries: nothing legal costs more."""
    tables = (work.tables[one][other] for one, other in work.pairs())
    return sum(int(entries[legal(entries)].max(initial=0)) for entries in (*work.costs.values(), *tables))


class Walk:
    """One replay of a tree, and the least that anything in it proves: None is more than any number.

    So is more than `most`, which is more than any legal choice costs.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.least: int | None = None
        self.where = "proof"
        self.leaves = self.steps = 0

    def run(self, work: Working, proof: Proof) -> None:
        """Replays the tree, parts in order; `work` is used up."""
        waiting = [_Part(work, None, proof, "proof")]
        while waiting:
            part = waiting.pop()
            work = part.begin()
            for k, step in enumerate(part.proof.steps):
                with _located(f"{part.where}, step {k} ({type(step).__name__})"):
                    replay(work, step)
                self.steps += 1
                if isinstance(step, Fix):
                    self.prove(step.below, f"{part.where}, step {k} (Fix)")
            end = part.proof.end
            with _located(f"{part.where}, end ({type(end).__name__})"):
                if isinstance(end, Branch):
                    waiting += _parts(work, end, part.where)[::-1]
                    continue
                self.leaves += 1
                if not isinstance(end, Empty):
                    self.prove(least(work, end), part.where)
                elif not work.is_impossible():
                    raise CertificateError("something may still be legal")

    def prove(self, bound: int | None, where: str) -> None:
        """Takes what a leaf proves."""
        if bound is not None and bound <= self.most and (self.least is None or bound < self.least):
            self.least, self.where = bound, where


@dataclass(frozen=True, slots=True)
class _Part:
    """A proof, and the problem that it is about: `work`, with a node restricted."""

    work: Working
    restricted: tuple[int, IntArray] | None
    proof: Proof
    where: str

    def begin(self) -> Working:
        if self.restricted is None:
            return self.work
        work = self.work.copy()
        work.keep(*self.restricted)
        return work


def _parts(work: Working, branch: Branch, where: str) -> list[_Part]:
    """The parts of a branch, which together must hold every choice of its node."""
    if len(branch.choices) != len(branch.parts):
        raise CertificateError("lists of different length")
    for choices in branch.choices:
        check_choices(work, branch.node, choices)
    covered = np.zeros(work.costs[branch.node].size if branch.node in work.costs else 0, np.bool_)
    for choices in branch.choices:
        covered[choices] = True
    if not branch.choices or not covered.all():
        raise CertificateError(
            f"the parts leave out choices of node {branch.node}", got=np.flatnonzero(~covered).tolist()
        )
    prefix = "part " if where == "proof" else f"{where}."
    return [
        _Part(work, (branch.node, choices), proof, f"{prefix}{k}")
        for k, (choices, proof) in enumerate(zip(branch.choices, branch.parts, strict=True))
    ]


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Says of a refusal where it happened."""
    try:
        yield
    except CertificateError as error:
        raise CertificateError(str(error), where=where) from None
