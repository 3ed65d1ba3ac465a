"""Picture: a figure as a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from strategy.base.errors import InputError
from strategy.base.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")


def save(figure: Figure, path: Path, *, dpi: int = 200) -> None:
    """Write a figure whole or not at all, in the format that the suffix names; the same figure, the same bytes."""
    import matplotlib

    picture = io.BytesIO()
    dated = {".pdf": "CreationDate", ".svg": "Date"}.get(path.suffix)
    with matplotlib.rc_context({"svg.hashsalt": "sbplan"}):
        metadata = {dated: None} if dated else None
        figure.savefig(picture, format=path.suffix.removeprefix("."), dpi=dpi, metadata=metadata)
    write_atomic(path, picture.getvalue())


def check_format(path: Path | None) -> None:
    """Refuse a suffix that names no format of pictures.

    Raises:
        InputError: such a suffix.
    """
    if path is not None and path.suffix not in FORMATS:
        raise InputError("no such format of pictures", where=f"--figure {path}", expected=", ".join(FORMATS))
