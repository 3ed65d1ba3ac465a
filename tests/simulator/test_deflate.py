"""Marked text as gzip: what comes out is what went in, whatever the marks."""

from __future__ import annotations

import gzip
import random
import zlib

import numpy as np

from simulator.deflate import LONGEST, WINDOW, Piece, zipped


def again(*pieces: Piece) -> bytes:
    return gzip.decompress(b"".join(zipped(pieces)))


def marked(text: str, *marks: tuple[int, int]) -> Piece:
    return Piece(Piece.of(text).text, np.array(marks, dtype=np.int64).reshape(-1, 2))


def test_text_without_marks() -> None:
    every = "".join(map(chr, range(128)))
    for text in ("", "a", every, 1000 * every):
        assert again(Piece.of(text)) == text.encode()
    assert again() == b""
    assert again(Piece.of("one "), Piece.of(""), Piece.of("two")) == b"one two"


def test_every_length_and_every_kind_of_distance() -> None:
    rng = random.Random(1)
    noise = "".join(rng.choice("0123456789abcdef") for _ in range(WINDOW + LONGEST))
    distances = [1, 2, 3, 4, 5, 8, 9, 255, 256, 257, 4096, 4097, 24576, 24577, WINDOW - 1, WINDOW]
    for length in range(1, LONGEST + 2):
        text = noise + noise[-1000 : length - 1000] + "."
        assert again(marked(text, (len(noise), len(noise) - 1000))) == text.encode()
    for distance in distances:
        copied = (noise[-distance:] * 300)[:LONGEST]
        assert again(marked(noise + copied, (len(noise), len(noise) - distance))) == (noise + copied).encode()


def test_marks_of_nothing_of_too_far_and_of_what_differs() -> None:
    text = "0123456789" * 8000
    assert again(marked(text, (10, -1), (20, 5), (40000, 0), (50000, 49990), (50003, 49993))) == text.encode()


def test_random_marks() -> None:
    rng = random.Random(2)
    for _ in range(200):
        text = "".join(rng.choice(("ab", "abc", "1", "22,")) for _ in range(rng.randrange(400)))
        places = sorted(rng.sample(range(len(text)), rng.randrange(len(text) + 1)))
        marks = [(place, rng.randrange(-1, place) if place else -1) for place in places]
        assert again(marked(text, *marks), Piece.of("end")) == (text + "end").encode()


def test_it_is_small_where_marks_are_good() -> None:
    line = '{"name":"layers.0.mlp.fc1","start":%08d}'
    lines = [line % number for number in range(10000)]
    length = len(lines[0])
    good = marked("".join(lines), *((length * k, length * (k - 1)) for k in range(1, 10000)))
    size = len(b"".join(zipped([good])))
    assert size < 2 * len(zlib.compress("".join(lines).encode(), 1))
