"""Deduce: signatures chosen greedily, op by op, the way OneFlow does without a search.

Ops are taken in canonical order. Of an op's legal signatures that the constraints allow, the choice looks only at where
its inputs are by then and at what it costs to bring them where the signature wants them (OneFlow, operator.cpp,
`GreedilyFindMinCopyCostNdSbp`; the rules are its `SBP_INFER_RULE_TAG` 1, 2 and 3). Inputs of the graph are wherever
they are wanted. A variable is whole on every rank unless the constraints forbid it, and its update, which rewrites it
in place, must leave it there. This is quick, knows nothing of what follows, and splits nothing that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from strategy.base.errors import InfeasibleError
from strategy.graph.graph import Graph, Op, Role
from strategy.graph.signature import Signature, op_signatures
from strategy.layout.convert import Converter
from strategy.layout.layout import Home, Stages
from strategy.sbp.sbp import B
from strategy.space.space import Keep


class Deduction(StrEnum):
    """Which of an op's signatures is taken."""

    MATCH_ALL = "match-all"
    """One that takes every input as it is; if there is none, the one whose conversions cost least."""
    MATCH_MOST = "match-most"
    """The one that takes most inputs as they are; of several, the one whose conversions cost least."""
    LEAST_COST = "least-cost"
    """The one whose conversions cost least; of several, the one that takes most inputs as they are."""


@dataclass(frozen=True, slots=True)
class SignatureFit:
    """How a signature suits what is there: the price of its conversions, and how many inputs need one."""

    price_ns: float
    mismatches: int


def pick(fits: Sequence[SignatureFit], rule: Deduction) -> int:
    """The index of the signature that a rule takes; the first of equals."""

    def rank(index: int) -> tuple[float, float, float]:
        fit = fits[index]
        if rule is Deduction.MATCH_MOST:
            return (0, fit.mismatches, fit.price_ns)
        return (rule is Deduction.MATCH_ALL and fit.mismatches > 0, fit.price_ns, fit.mismatches)

    return min(range(len(fits)), key=rank)


def deduce(
    graph: Graph,
    stages: Stages,
    converter: Converter,
    keep: Keep,
    *,
    rule: Deduction = Deduction.MATCH_ALL,
    owned: bool = False,
) -> dict[str, Signature]:
    """A signature for every op; with `owned`, tensors may be with one rank of the first axis.

    Raises:
        InfeasibleError: the constraints leave an op none, or none that its inputs can be converted for.
    """
    return _Deducer(graph, stages, converter, keep, rule, owned).run()


@dataclass(slots=True)
class _Deducer:
    graph: Graph
    stages: Stages
    converter: Converter
    keep: Keep
    rule: Deduction
    owned: bool
    homes: dict[str, Home] = field(default_factory=dict)

    def run(self) -> dict[str, Signature]:
        self.homes.update(self.stages.homes)
        chosen: dict[str, Signature] = {}
        for op in self.graph.ops:
            for name in (*op.inputs, *op.updates):
                self._settle(name)
            options = [(option, self._fit(op, option)) for option in self._options(op) if self._in_place(op, option)]
            options = [(option, fit) for option, fit in options if fit.price_ns < float("inf")]
            if not options:
                raise InfeasibleError(f"no legal signature of op {op.name} satisfies the pins", hint="relax a pin")
            chosen[op.name] = signature = options[pick([fit for _, fit in options], self.rule)][0]
            stage = self.stages.stage_of[op.name]
            frozen = ((n, nd) for n, nd in zip(op.inputs, signature.inputs, strict=True) if self._is_frozen(n))
            for name, layout in (*frozen, *zip(op.outputs, signature.outputs, strict=True)):
                self.homes.setdefault(name, Home(stage, layout))
        return chosen

    def _options(self, op: Op) -> list[Signature]:
        mesh = self.stages.placement(op.name).mesh
        return [s for s in op_signatures(self.graph, op, mesh, owned=self.owned) if self.keep(op, s)]

    def _is_frozen(self, name: str) -> bool:
        return self.graph.values[name].role is Role.VARIABLE and name not in self.graph.updater

    def _settle(self, name: str) -> None:
        """Where a variable lives is decided with its update, for all that it updates: whole if that is allowed."""
        op = self.graph.updater.get(name)
        if op is None or name in self.homes:
            return
        options = self._options(op)
        if not options:
            raise InfeasibleError(f"no legal signature of op {op.name} satisfies the pins", hint="relax a pin")
        whole = (option for option in options if all(sbp == B for nd in option.updates for sbp in nd))
        found = next(whole, options[0])
        stage = self.stages.stage_of[op.name]
        self.homes.update((n, Home(stage, nd)) for n, nd in zip(op.updates, found.updates, strict=True))

    def _in_place(self, op: Op, option: Signature) -> bool:
        return all(self.homes[name].layout == nd for name, nd in zip(op.updates, option.updates, strict=True))

    def _fit(self, op: Op, option: Signature) -> SignatureFit:
        stage, price_ns, mismatches = self.stages.stage_of[op.name], 0.0, 0
        for name, layout in zip(op.inputs, option.inputs, strict=True):
            home = self.homes.get(name)
            if home is not None and home != Home(stage, layout):
                price_ns += sum(self.converter.prices_ns(self.graph.values[name].spec, home, stage, layout))
                mismatches += home.layout != layout
        return SignatureFit(price_ns, mismatches)
