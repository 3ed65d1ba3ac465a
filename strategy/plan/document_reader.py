"""Document reader: values of declared types out of the parsed JSON of a plan; every refusal names the key."""

from __future__ import annotations

import dataclasses
from typing import Any

from strategy.base.errors import PlanError
from strategy.base.limits import LARGEST, LONGEST_ACT_S
from strategy.hardware.cluster import Link
from strategy.sbp.sbp import NdSbp, parse_nd


class DocumentReader:
    """Typed access to the parsed JSON of a plan file.

    Raises (every method):
        PlanError: the value is of another type, or out of range; it names the file and the key.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def mapping(self, value: Any, key: str) -> dict[str, Any]:
        """A JSON object."""
        if not isinstance(value, dict):
            raise PlanError("not an object", where=f"{self.path}: {key}", got=value)
        return value

    def record(self, kind: type[Any], value: Any, key: str, **converted: Any) -> Any:
        """A dataclass from a JSON object with exactly its fields; scalars must have the annotated type."""
        content = self.mapping(value, key)
        fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
        unknown = [name for name in content if name not in fields]
        missing = [name for name in fields if name not in content and name not in converted]
        if unknown or missing:
            raise PlanError("keys differ", where=f"{self.path}: {key}", got=unknown, expected=f"also {missing}")
        arguments = {name: self._scalar(content[name], fields[name], f"{key}.{name}") for name in content}
        return kind(**{**arguments, **converted})

    def _scalar(self, value: Any, annotation: str, key: str) -> Any:
        if annotation == "tuple[int, ...]":
            return self.integers(value, key)
        if annotation == "tuple[float, ...]":
            return self.figures(value, key)
        if annotation.endswith(" | None") and value is None:
            return None
        annotation = annotation.removesuffix(" | None")
        kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
        wanted = kinds.get(annotation)
        boolean = isinstance(value, bool) and annotation != "bool"
        if wanted is not None and (boolean or not isinstance(value, wanted)):
            raise PlanError("a wrong type", where=f"{self.path}: {key}", got=value, expected=annotation)
        if wanted == (int,) and abs(value) > LARGEST:
            raise PlanError("a number out of range", where=f"{self.path}: {key}", expected="64 bits")
        return float(value) if annotation == "float" else value

    def link(self, value: Any, key: str) -> Link:
        """A level of the network."""
        found: Link = self.record(Link, {"overlaps": None, **self.mapping(value, key)}, key)
        return found

    def integer(self, value: Any, key: str) -> int:
        """A whole number of 64 bits."""
        found: int = self._scalar(value, "int", key)
        return found

    def integers(self, value: Any, key: str) -> tuple[int, ...]:
        """A list of whole numbers."""
        if not isinstance(value, list):
            raise PlanError("not a list of numbers", where=f"{self.path}: {key}", got=value)
        return tuple(self.integer(item, key) for item in value)

    def figures(self, value: Any, key: str) -> tuple[float, ...]:
        """A list of numbers."""
        if not isinstance(value, list):
            raise PlanError("not a list of numbers", where=f"{self.path}: {key}", got=value)
        return tuple(self._scalar(item, "float", key) for item in value)

    def listed(self, value: Any, key: str = "training.groups") -> list[Any]:
        """A list."""
        if not isinstance(value, list):
            raise PlanError("not a list", where=f"{self.path}: {key}", got=value)
        return value

    def texts(self, value: Any, key: str) -> tuple[str, ...]:
        """A list of texts."""
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise PlanError("not a list of texts", where=f"{self.path}: {key}", got=value)
        return tuple(value)

    def rates_and_times(self, record: Any, key: str) -> None:
        """Refuse rates below one per second, ratios that are not above zero, shares of one and times that cannot be."""
        for name in (field.name for field in dataclasses.fields(record)):
            value = getattr(record, name)
            if name.endswith("_per_s"):
                legal = 1.0 <= value <= LARGEST
            elif name.endswith("_s") or name.startswith("s_per_"):
                legal = 0.0 <= value <= LONGEST_ACT_S
            elif name.endswith("_speedup"):
                legal = 1 / LARGEST <= value <= LARGEST
            elif name == "slowdown":
                legal = 0.0 <= value < 1.0
            else:
                continue
            if not legal:
                raise PlanError("a rate or time out of range", where=f"{self.path}: {key}.{name}", got=value)

    def seconds(self, value: Any, key: str) -> float:
        """A time that is neither negative nor endless."""
        found: float = self._scalar(value, "float", key)
        if not 0.0 <= found <= LONGEST_ACT_S:
            raise PlanError("a time out of range", where=f"{self.path}: {key}", got=value)
        return found

    def layout(self, value: Any, key: str) -> NdSbp:
        """One NdSbp."""
        if not isinstance(value, list):
            raise PlanError("not a list of SBPs", where=f"{self.path}: {key}", got=value)
        return parse_nd(value, where=f"{self.path}: {key}")

    def layouts(self, value: Any, key: str) -> tuple[NdSbp, ...]:
        """Several NdSbps."""
        if not isinstance(value, list):
            raise PlanError("not a list of layouts", where=f"{self.path}: {key}", got=value)
        return tuple(self.layout(item, key) for item in value)
