"""Texts that are read when they are asked for: the bytes of a file, and what is said when they are no longer there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.data.file_text import FileText, FolderText, open_text
from executor.data.text import check_vocabulary, read_corpus
from strategy.base.errors import InputError

CONTENT = bytes(range(251)) * 3


@given(st.integers(0, 800), st.integers(0, 800), st.integers(0, 800), st.integers(0, 800))
def test_a_part_of_a_file_is_its_bytes(
    tmp_path_factory: pytest.TempPathFactory, begin: int, end: int, first: int, last: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "text"
    path.write_bytes(CONTENT)
    begin, end = sorted((min(begin, len(CONTENT)), min(end, len(CONTENT))))
    part = open_text(path).part(begin, end)
    assert len(part) == end - begin
    assert part[first:last].tobytes() == CONTENT[begin:end][first:last]


def test_a_text_that_was_cut_off_is_named_with_the_place(tmp_path: Path) -> None:
    """Mapped, it would end the process by SIGBUS."""
    path = tmp_path / "text"
    path.write_bytes(CONTENT)
    text = open_text(path).part(100, 700)
    os.truncate(path, 300)
    assert text[0:200].tobytes() == CONTENT[100:300]
    with pytest.raises(InputError, match=rf"data {path}, byte 300: the text ends here.*expected 700 bytes.*--resume"):
        text[150:250]


def test_what_the_disk_says_is_told_with_the_place(tmp_path: Path) -> None:
    """A folder opens and cannot be read: the one such error that needs no broken disk."""
    text = FileText(tmp_path, open_text(tmp_path).file, 10, 20)
    with pytest.raises(
        InputError, match=rf"data {tmp_path}, byte 12: the text cannot be read \(got 'Is a directory'\)"
    ):
        text[2:4]


def test_a_file_is_closed_with_its_last_part(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(CONTENT)
    text = open_text(path)
    part, descriptor = text.part(5, 9), text.file.descriptor
    del text
    assert part[0:4].tobytes() == CONTENT[5:9]
    del part
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_strange_byte_of_a_folder_is_named_with_its_file(tmp_path: Path) -> None:
    """Positions count from the beginning of the file, in whichever part of the text it is."""
    for index in range(40):
        (tmp_path / f"{index:02}.txt").write_bytes(b"abcde" * 10)
    strange = tmp_path / "17.txt"
    strange.write_bytes(b"abc\xc8" + b"abcde" * 10)
    corpus = read_corpus(tmp_path)
    assert isinstance(corpus.train, FolderText)
    found = corpus.train if b"\xc8" in corpus.train[:].tobytes() else corpus.validation
    with pytest.raises(InputError, match=rf"data {strange}, byte 3: the text has tokens.*got 'byte 200'"):
        check_vocabulary(found, 128)
