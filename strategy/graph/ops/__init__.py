"""Ops: one file per family, one `OpDef` per kind; this index finds them all."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from strategy.base.errors import InputError, did_you_mean
from strategy.graph.ops.base import OpDef
from strategy.graph.ops.traits import MEMORY_BOUND, CostClass


def _definitions() -> Iterator[OpDef]:
    """The `OPS` of every module of this package, in the order of the modules' names."""
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__, f"{__name__}.")):
        yield from getattr(importlib.import_module(module), "OPS", ())


REGISTRY: Mapping[str, OpDef] = {definition.kind: definition for definition in _definitions()}


def op_definition(kind: str) -> OpDef:
    """The definition of an op kind.

    Raises:
        InputError: the kind is unknown.
    """
    if kind not in REGISTRY:
        raise InputError("unknown op kind", got=kind, hint=did_you_mean(kind, REGISTRY))
    return REGISTRY[kind]


def cost_class(kind: str) -> CostClass:
    """What the time of an act of a kind is bound by; of one that is no op, it is the bytes."""
    found = REGISTRY.get(kind)
    return MEMORY_BOUND if found is None else found.cost
