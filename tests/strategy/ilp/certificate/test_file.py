"""The file: the same bytes every time, what was written comes back, and anything else is refused by name."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from strategy.base.errors import CertificateError, InputError
from strategy.ilp.certificate.file import read_certificate, write_certificate
from strategy.ilp.certificate.proof import Branch, Certificate, Empty, Proof
from strategy.ilp.certificate.words import MAX_DEPTH
from strategy.ilp.solve import brute_force
from tests.strategy.ilp.certificate.proofs import random_certificate
from tests.strategy.ilp.problems import random_problem

SMALL = Certificate("0" * 64, (0, 1), 7, 5, Proof((), Empty()))


def _certificates(count: int) -> Iterator[Certificate]:
    rng = random.Random(3)
    for _ in range(count):
        problem = random_problem(rng)
        yield random_certificate(problem, rng, optimum=brute_force(problem))


def _words(item: object) -> object:
    """A certificate, or part of one, as something that can be compared."""
    if isinstance(item, np.ndarray):
        return item.tolist()
    if isinstance(item, tuple):
        return [_words(part) for part in item]
    if hasattr(item, "__slots__"):
        return [type(item).__name__, *(_words(getattr(item, name)) for name in item.__slots__)]
    return item


def test_what_is_written_comes_back_and_is_written_alike(tmp_path: Path) -> None:
    for certificate in _certificates(100):
        write_certificate(tmp_path / "one", certificate)
        again = read_certificate(tmp_path / "one")
        assert _words(again) == _words(certificate)
        write_certificate(tmp_path / "two", again)
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    (certificate,) = _certificates(1)
    write_certificate(tmp_path / "whole", certificate)
    whole = (tmp_path / "whole").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "part").write_bytes(whole[:size])
        with pytest.raises(CertificateError, match=r"not a (whole )?certificate"):
            read_certificate(tmp_path / "part")


def _rewritten(path: Path, *, head: str | None = None, proof: np.ndarray | None = None) -> None:
    """`SMALL` with another head or another stream, sealed again."""
    write_certificate(path, SMALL)
    tensors = load(gzip.decompress(path.read_bytes()))
    tensors["proof"] = tensors["proof"] if proof is None else proof
    head = '{"version":2,"problem":"","cost":7,"lower_bound":5}' if head is None else head
    path.write_bytes(gzip.compress(save(tensors, metadata={"certificate": head})))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "word 0"),
        ([0], "word 1"),
        ([0, 11], "no such end"),
        ([1, 11], "no such step"),
        ([-1, 10], "a length beyond the end"),
        ([1 << 40, 10], "a length beyond the end"),
        ([0, 9, 3, 1 << 60], "a length beyond the end"),
        ([0, 7, 0, 0, 5, 1], "a length beyond the end"),
        ([1, 2, 0, 1, 1], "the proof ends in the middle"),
        ([1, 6, 0, 0, 10, 10], "not a bound"),
        ([0, 10, 10], "words after the end"),
        ([0, 9, 0, 1, 0] * (MAX_DEPTH + 1) + [0, 10], "too deep"),
    ],
)
def test_a_stream_that_is_no_proof_is_refused(words: list[int], message: str, tmp_path: Path) -> None:
    _rewritten(tmp_path / "file", proof=np.array(words, np.int64))
    with pytest.raises(CertificateError, match=message):
        read_certificate(tmp_path / "file")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("", "not a certificate"),
        ("[]", "not a certificate"),
        ('{"version":2}', "missing required field"),
        ('{"version":1,"problem":"","cost":7,"lower_bound":5}', "a version that is not known"),
        ('{"version":2,"problem":"","cost":7.5,"lower_bound":5}', "Expected `int"),
        ('{"version":2,"problem":"","cost":7,"cost":8,"lower_bound":5}', "key 'cost' is given twice"),
    ],
)
def test_a_head_that_claims_nothing_is_refused(head: str, message: str, tmp_path: Path) -> None:
    _rewritten(tmp_path / "file", head=head)
    with pytest.raises(CertificateError, match=message):
        read_certificate(tmp_path / "file")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_certificate(tmp_path / "missing")
    with pytest.raises(InputError, match="Is a directory"):
        read_certificate(tmp_path)
    for content in (b"", b"{}", gzip.compress(b""), gzip.compress(b"{}"), gzip.compress(save({"x": np.zeros(3)}))):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(CertificateError, match="not a"):
            read_certificate(tmp_path / "other")


def test_a_proof_in_other_numbers_is_refused(tmp_path: Path) -> None:
    for words in (np.zeros((2, 2), np.int64), np.zeros(2)):
        _rewritten(tmp_path / "file", proof=words)
        with pytest.raises(CertificateError, match="one-dimensional tensors of int64"):
            read_certificate(tmp_path / "file")


def test_too_deep_a_proof_is_not_written(tmp_path: Path) -> None:
    proof = Proof((), Empty())
    for _ in range(MAX_DEPTH + 1):
        proof = Proof((), Branch(0, (np.array([0]),), (proof,)))
    with pytest.raises(CertificateError, match="too deep"):
        write_certificate(tmp_path / "file", Certificate("", None, None, 0, proof))
