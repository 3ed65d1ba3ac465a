"""Which modules are repeated layers, by the paths of modules that a file gives its nodes.

    encoder.layer.0 ... encoder.layer.11                 a list by numbers
    encoder.layers.encoder_layer_0 ... encoder_layer_11  a list by names with numbers
    layer1.0 ... layer1.2, layer2.0 ... layer4.2         several lists, one behind the other

Of the ways of reading the names, the one is taken whose members hold the most of the nodes, and at least half; of
several, the one with the most members. Lists inside of a member are part of it, and a list by numbers may have one
member. Members count as layers in the order in which they are first called, if no value flows from a later one to an
earlier one; else nothing is a layer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from strategy.graph.graph import Path
from strategy.models.imported.foreign import ForeignNode, refs_of

Names = tuple[str, ...]
_BY_NUMBER = re.compile(r"()(\d{1,6})")
_BY_NAME = re.compile(r"(.*\D)(\d{1,6})")
_LEAST_SHARE = 0.5
"""Of the nodes that layers hold together."""
LAYERS = "layers"


def layer_paths(nodes: Sequence[ForeignNode]) -> Callable[[Names], Path]:
    """What path of ours a module of the file has: members of lists become `layers`, by their numbers."""
    scopes = [node.scope for node in nodes]
    options = [_members(scopes, pattern, least) for pattern, least in ((_BY_NAME, 2), (_BY_NUMBER, 2), (_BY_NUMBER, 1))]
    shares = {place: _share(scopes, found) for place, found in enumerate(options) if len(found) > 1}
    fitting = [place for place, share in shares.items() if share >= _LEAST_SHARE]
    best = max(fitting, key=lambda place: (round(shares[place], 1), len(options[place])), default=None)
    members = {} if best is None else options[best]
    if not _in_order(nodes, members):
        members = {}

    def path_of(names: Names) -> Path:
        for length in range(1, len(names) + 1):
            number = members.get(names[:length])
            if number is not None:
                return (LAYERS, number, *names[length:])
        return names

    return path_of


def _members(scopes: Iterable[Names], pattern: re.Pattern[str], least: int) -> dict[Names, int]:
    """Member of an outermost list -> its place in the order of first calls."""
    lists: dict[tuple[Names, str], dict[Names, None]] = defaultdict(dict)
    distinct = dict.fromkeys(scopes)
    for scope in distinct:
        for length in range(1, len(scope) + 1):
            match = pattern.fullmatch(scope[length - 1])
            if match is not None:
                lists[scope[: length - 1], match[1]][scope[:length]] = None
    several = {member for found in lists.values() if len(found) >= least for member in found}
    order: dict[Names, int] = {}
    for scope in distinct:
        outermost = next((scope[:n] for n in range(1, len(scope) + 1) if scope[:n] in several), None)
        if outermost is not None:
            order.setdefault(outermost, len(order))
    return order


def _member_of(scope: Names, members: Mapping[Names, int]) -> int | None:
    return next((members[scope[:n]] for n in range(1, len(scope) + 1) if scope[:n] in members), None)


def _share(scopes: Sequence[Names], members: Mapping[Names, int]) -> float:
    return sum(_member_of(scope, members) is not None for scope in scopes) / max(1, len(scopes))


def _in_order(nodes: Sequence[ForeignNode], members: Mapping[Names, int]) -> bool:
    """Whether values flow from earlier layers to later ones alone."""
    reached: dict[str, int] = {}
    for node in nodes:
        before = [reached.get(name, -1) for one in node.arguments.values() for name in refs_of(one)]
        own, latest = _member_of(node.scope, members), max(before, default=-1)
        if own is not None and own < latest:
            return False
        for name in node.outputs:
            reached[name] = latest if own is None else own
    return True
