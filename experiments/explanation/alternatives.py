"""Alternatives: the other signatures that an op of a plan may have, each with what it would cost, all else as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategy.base.budget import Budget
from strategy.base.errors import InputError, SbplanError, did_you_mean
from strategy.graph.graph import Op
from strategy.graph.signature import Signature, op_signatures
from strategy.layout.convert import Converter, lay_out
from strategy.layout.objective import Priced
from strategy.passes.zero_layouts import zero_filter
from strategy.plan.plan import Plan
from strategy.sbp.sbp import NdSbp, format_nd


@dataclass(frozen=True, slots=True)
class Alternative:
    """A signature: what an act of the op takes, and what the step takes more with the conversions that it needs.

    `added_s` is by the plan's objective, with all other ops as they are; None where no chain of conversions leads
    there, or there was no time to find out.
    """

    signature: Signature
    chosen: bool
    act_s: float
    added_s: float | None

    def document(self) -> dict[str, object]:
        """As JSON knows it."""
        parts = {name: [format_nd(nd) for nd in getattr(self.signature, name)] for name in OPERANDS}
        return {**parts, "chosen": self.chosen, "act_s": self.act_s, "added_s": self.added_s}

    def __str__(self) -> str:
        sides = (" ".join("[" + ", ".join(format_nd(nd)) + "]" for nd in side) for side in self._sides())
        return " -> ".join(sides)

    def _sides(self) -> tuple[tuple[NdSbp, ...], ...]:
        read, written = self.signature.inputs, (*self.signature.outputs, *self.signature.updates)
        return (read, written) if written else (read,)


OPERANDS = ("inputs", "outputs", "updates")


def alternatives(plan: Plan, name: str, budget: Budget) -> tuple[Alternative, ...]:
    """Every signature that the plan's verifier would accept of an op, the chosen one first, then cheapest first.

    Raises:
        InputError: the plan has no such op.
    """
    op = plan.graph.by_name.get(name)
    if op is None:
        raise InputError("no such op", where="--op", got=name, hint=did_you_mean(name, plan.graph.by_name))
    stages, chosen = plan.layout.stages, plan.layout.signatures[name]
    keep = zero_filter(plan.graph, plan.config, stages.stage_of)
    mesh = stages.placement(name).mesh
    legal = op_signatures(plan.graph, op, mesh, owned=plan.config.zero_owner)
    signatures = [chosen, *(one for one in legal if one != chosen and keep(op, one))]
    ((*act_s,),) = plan.cost.all_op_seconds(plan.graph, [(op, signatures)], mesh)
    converter = Converter(plan.cost, stages.placements)
    order = sorted(range(len(signatures)), key=lambda i: (i > 0, act_s[i]))
    found = []
    for i in order:
        in_time = i == 0 or not budget.is_over()
        added_s = _added_s(plan, op, signatures[i], converter) if in_time else None
        found.append(Alternative(signatures[i], i == 0, act_s[i], added_s))
    others = sorted(found[1:], key=lambda one: (one.added_s is None, one.added_s or 0.0, one.act_s))
    return (found[0], *others)


def _added_s(plan: Plan, op: Op, signature: Signature, converter: Converter) -> float | None:
    """What the objective grows by with another signature of one op."""
    signatures: Mapping[str, Signature] = {**plan.layout.signatures, op.name: signature}
    try:
        layout = lay_out(plan.graph, plan.layout.stages, signatures, converter)
        changed = Priced(plan.graph, layout, plan.pipeline, plan.cost).objective_ns
    except SbplanError:
        return None
    return (changed - plan.priced.objective_ns) / 1e9
