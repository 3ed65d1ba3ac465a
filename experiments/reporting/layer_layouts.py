"""Layer layouts: the signature of every op of the forward pass, layers together that are laid out alike."""

from __future__ import annotations

from dataclasses import dataclass

from strategy.graph.graph import Phase
from strategy.plan.plan import Plan
from strategy.sbp.sbp import NdSbp, format_nd


@dataclass(frozen=True, slots=True)
class AlikeLayers:
    """Some layers (none: what is outside of them), their stages, and (op, kind, inputs, outputs) of each op in them."""

    layers: tuple[int, ...]
    stages: tuple[int, ...]
    ops: tuple[tuple[str, str, str, str], ...]


def layer_layouts(plan: Plan) -> tuple[AlikeLayers, ...]:
    """The layouts of a plan, in the order of its layers."""
    ops: dict[int | None, list[tuple[str, str, str, str]]] = {}
    stages: dict[int | None, set[int]] = {}
    for op in plan.graph.ops:
        if op.phase is not Phase.FORWARD or op.parameter:
            continue
        signature = plan.layout.signatures[op.name]
        read, written = (_text(side) for side in (signature.inputs, signature.outputs))
        ops.setdefault(op.layer, []).append((op.template or op.name, op.kind, read, written))
        stages.setdefault(op.layer, set()).add(plan.layout.stages.stage_of[op.name])
    alike: dict[tuple[object, ...], list[int | None]] = {}
    for layer, mine in ops.items():
        alike.setdefault((layer is None, *mine), []).append(layer)
    return tuple(
        AlikeLayers(
            tuple(layer for layer in layers if layer is not None),
            tuple(sorted(set().union(*(stages[layer] for layer in layers)))),
            tuple(ops[layers[0]]),
        )
        for layers in alike.values()
    )


def _text(layouts: tuple[NdSbp, ...]) -> str:
    return "; ".join(", ".join(format_nd(nd)) for nd in layouts)
