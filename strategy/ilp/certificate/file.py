"""The certificate's file: safetensors, gzipped, with the proof as one stream of int64 words; the same bytes every time.

Metadata `certificate` is a JSON object {`version`, `problem`, `cost`, `lower_bound`}; tensors are `choice` and
`proof`, whose words are those of `words`.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import msgspec
import numpy as np

from strategy.base.errors import CertificateError, InputError
from strategy.base.files import repeated_key, write_atomic
from strategy.ilp.certificate.proof import Certificate, IntArray
from strategy.ilp.certificate.words import proof_of, proof_words

VERSION = 2
MAX_BYTES = 1 << 30
"""More than this unpacked is refused."""


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    """What is claimed, beside the proof."""

    version: int
    problem: str
    cost: int | None
    lower_bound: int | None


def write_certificate(path: Path, certificate: Certificate) -> None:
    """Writes `certificate`, whole or not at all.

    Raises:
        InputError: the folder does not exist, or `path` is a folder.
        RunError: the file system refuses.
    """
    from safetensors.numpy import save

    head = _Head(VERSION, certificate.problem, certificate.cost, certificate.lower_bound)
    tensors = {"proof": proof_words(certificate.proof)}
    if certificate.choice is not None:
        tensors["choice"] = np.array(certificate.choice, np.int64)
    content = save(tensors, metadata={"certificate": msgspec.json.encode(head).decode()})
    write_atomic(path, gzip.compress(content, compresslevel=6, mtime=0))


def read_certificate(path: Path) -> Certificate:
    """The certificate in `path`.

    Raises:
        CertificateError: no such file, unreadable, truncated, or not a certificate of this version.
    """
    content = _unpacked(path)
    try:
        head, tensors = _parsed(content)
        proof = proof_of(tensors["proof"])
    except CertificateError as error:
        raise CertificateError(str(error), where=str(path)) from None
    choice = tuple(tensors["choice"].tolist()) if "choice" in tensors else None
    return Certificate(head.problem, choice, head.cost, head.lower_bound, proof)


def _unpacked(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            content = file.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CertificateError(f"not a whole certificate: {error}", where=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(content) > MAX_BYTES:
        raise CertificateError("too large", where=str(path), expected=f"at most {MAX_BYTES} bytes unpacked")
    return content


def _parsed(content: bytes) -> tuple[_Head, dict[str, IntArray]]:
    """Metadata and tensors of a safetensors document."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(content)
        size = int.from_bytes(content[:8], "little")
        header = msgspec.json.decode(content[8 : 8 + size], type=dict[str, object])
        metadata = msgspec.convert(header.get("__metadata__"), dict[str, str])
        claims = metadata.get("certificate", "")
        head = msgspec.json.decode(claims, type=_Head)
        repeated = repeated_key(content[8 : 8 + size]) or repeated_key(claims)
    except (SafetensorError, msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
        raise CertificateError(f"not a certificate: {error}") from None
    if repeated is not None:
        raise CertificateError(f"key {repeated!r} is given twice in one object")
    if head.version != VERSION:
        raise CertificateError("a version that is not known", got=head.version, expected=f"{VERSION}")
    if "proof" not in tensors or set(tensors) - {"proof", "choice"}:
        raise CertificateError("not a certificate", got=sorted(tensors), expected="tensors proof, choice")
    if any(tensor.dtype != np.int64 or tensor.ndim != 1 for tensor in tensors.values()):
        raise CertificateError("not a certificate", expected="one-dimensional tensors of int64")
    return head, tensors
