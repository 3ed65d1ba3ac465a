"""ZeRO: where gradients and parameters are to be shared out, the graph says when they meet and part.

    stage 2, 3   every gradient that is shared out is accumulated, even if there is one micro-batch:
                 `x:dw -> accumulate -> update`; so its terms are free as soon as they are scattered
    stage 3      every parameter that is shared out is repeated before its use, once per layer and pass:
                 `w -> repeat w:forward -> x`, `w -> repeat w:backward -> x:dx`; so each use gathers it anew

The layouts that make this ZeRO are in `zero_layouts`.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.graph.graph import Graph, Lineage, Op, Phase, Value, act_rate, check_graph
from strategy.layout.config import PlanConfig
from strategy.passes.zero_layouts import is_shared, persistent
from strategy.sbp.tensor import Rate


def share_out(graph: Graph, config: PlanConfig) -> Graph:
    """The training graph with the accumulators and repeats of the config's ZeRO stage."""
    if config.zero_stage >= 2 and config.num_micro_batches == 1:
        graph = _accumulated(graph, config)
    if config.zero_stage == 3:
        graph = _repeated(graph, config)
    return graph


def _accumulated(graph: Graph, config: PlanConfig) -> Graph:
    """An accumulator behind every gradient that goes to updates alone."""
    values, ops = dict(graph.values), []
    sums: dict[str, str] = {}
    for op in graph.ops:
        ops.append(replace(op, inputs=tuple(sums.get(name, name) for name in op.inputs)))
        for name in op.outputs if op.phase is Phase.BACKWARD else ():
            value, readers = graph.values[name], graph.consumers[name]
            last = bool(readers) and all(reader.phase is Phase.UPDATE for reader in readers)
            if last and value.rate is Rate.MICRO_BATCH and is_shared(value.spec.shape, config):
                line = graph.derived(name, "sum", op.layer)
                sums[name] = line.name
                values[line.name] = Value(line.name, value.spec, Rate.STEP)
                ops.append(line.op("accumulate", (name,), op.phase, op.layer))
    return _checked(replace(graph, values=values, ops=tuple(ops)))


def _repeated(graph: Graph, config: PlanConfig) -> Graph:
    """A repeat before the first reader of a parameter in every part of the model and pass that uses it."""
    shared = {n for n in persistent(graph, frozen=True) if is_shared(graph.values[n].spec.shape, config)}
    values, ops = dict(graph.values), []
    repeats: dict[tuple[str, str, Phase], str] = {}
    for op in graph.ops:
        names = list(op.inputs)
        for position, name in enumerate(op.inputs if _is_use(graph, op) else ()):
            if name not in shared:
                continue
            part = op.parameter or op.root
            if (name, part, op.phase) not in repeats:
                line = graph.derived(name, op.phase, op.layer)
                if line.name in values:
                    line = _repeat_for(graph, name, op)
                repeats[name, part, op.phase] = line.name
                values[line.name] = Value(line.name, graph.values[name].spec, Rate.MICRO_BATCH)
                ops.append(line.op("repeat", (name,), op.phase, op.layer))
            names[position] = repeats[name, part, op.phase]
        ops.append(replace(op, inputs=tuple(names)))
    return _checked(replace(graph, values=values, ops=tuple(ops)))


def _repeat_for(graph: Graph, name: str, reader: Op) -> Lineage:
    """The lineage of a second repeat in a pass: of what no layer owns, that of one layer is like that of another."""
    part = reader.parameter or reader.root
    line = graph.derived(name, f"{reader.phase}:{part}", reader.layer)
    origin = graph.by_name.get(part)
    if origin is None or origin.layer != reader.layer or line.template != line.name:
        return line
    return replace(line, template=f"{name}:{reader.phase}:{origin.template or origin.name}")


def _is_use(graph: Graph, op: Op) -> bool:
    return op.phase is not Phase.UPDATE and act_rate(graph, op) is Rate.MICRO_BATCH


def _checked(graph: Graph) -> Graph:
    check_graph(graph)
    return graph
