"""How unevenly experts that drop nothing are wanted: as prices assume it, and as memory allows for it.

What a router sends where is data. Prices take a demand, and memory may either hold the worst case, in which all tokens
want the experts of one rank, or so many times an even share (a run in which more come ends and says so). With e experts
over r ranks and k choices a token, the worst case is min(k, e / r) r / k times an even share: 4 for Mixtral's 8 experts
on 8 ranks, 32 for DeepSeek-V3's 256 on 64.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.graph.builder import GraphBuilder


def demand_of_experts(builder: GraphBuilder, imbalance: float, room: float) -> None:
    """Let all ragged values of a forward pass have this imbalance and room (see `strategy.sbp.tensor.Ragged`).

    Ops that make them say so in their attributes.
    """
    for name, value in builder.values.items():
        if value.spec.ragged is not None:
            ragged = replace(value.spec.ragged, imbalance=imbalance, room=room)
            builder.values[name] = replace(value, spec=replace(value.spec, ragged=ragged))
    for i, op in enumerate(builder.ops):
        if "room" in op.attrs:
            builder.ops[i] = replace(op, attrs={**op.attrs, "imbalance": imbalance, "room": room})
