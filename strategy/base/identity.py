"""Identity: a key that stands for one object, whatever its class says of equality."""

from __future__ import annotations


class Identity:
    """Equal to another if both stand for the same object, which it keeps, so that no other can take its place."""

    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held

    def __hash__(self) -> int:
        return object.__hash__(self.held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.held is other.held
