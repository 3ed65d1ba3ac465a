"""Web page: values as one file that a browser shows.

Template, style and scripts lie beside this module in `page`, and the values are put into it as JSON. The page asks for
nothing from anywhere, and says so to the browser (a content security policy).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "page"


class Template(StrEnum):
    """Which page: its template and its script have this name."""

    REPORT = "report"
    PRICE = "price"


def web_page(document: Mapping[str, Any], template: Template) -> str:
    """The page that shows some values; the same values, the same bytes."""
    files = (f"{template}.html", "report.css", "common.js", f"{template}.js")
    found, style, common, script = ((FOLDER / file).read_text("utf-8") for file in files)
    # "<" could end the element that the values stand in, or begin a comment there.
    values = json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    for mark, text in (("/* STYLE */", style), ("/* SCRIPT */", f"{common}\n{script}"), ("VALUES", values)):
        before, _, after = found.partition(mark)
        found = before + text + after
    return found
