"""Stage times: what a micro-batch takes on a stage of a pipeline, which is all that a schedule under study knows."""

from __future__ import annotations

from dataclasses import dataclass

from strategy.base.units import to_ns
from strategy.graph.graph import Phase
from strategy.graph.weight_gradients import weight_gradients
from strategy.layout.objective import Priced
from strategy.program.program import ActKind
from strategy.sbp.tensor import Rate


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Nanoseconds of one micro-batch on one stage, and of one update of the stage's parameters.

    Attributes:
        forward_ns: of the forward pass.
        backward_ns: of the backward pass, gradients of weights included.
        weight_ns: of the gradients of weights alone.
        update_ns: of what is done once per update: the exchange of gradients and the optimiser.
        message_ns: of a message to the next stage, or back from it.
    """

    forward_ns: int
    backward_ns: int
    weight_ns: int = 0
    update_ns: int = 0
    message_ns: int = 0


def stage_times(priced: Priced) -> tuple[StageTimes, ...]:
    """Of a laid-out graph, at its prices, those of its busiest ranks; collectives of a pass count in full, loads not.

    A message is the longer of those to the next stage and back.
    """
    stages = range(len(priced.layout.stages.placements))
    forward, backward, weight, update = ([0 for _ in stages] for _ in range(4))
    messages = {phase: [0 for _ in stages] for phase in Phase}
    deferred = weight_gradients(priced.graph)
    tensors = priced.arrangement.tensors
    for action, found in zip(priced.arrangement.actions, priced.features, strict=True):
        time_ns, at = to_ns(priced.cost.seconds(found)), action.stage
        if action.kind in (ActKind.LOAD, ActKind.COPY):
            continue
        if action.rate is Rate.STEP or action.phase is Phase.UPDATE:
            update[at] += time_ns
        elif action.kind is ActKind.TRANSFER:
            ends = tensors[action.reads[0]].stage, tensors[action.writes[0]].stage
            messages[action.phase][min(ends)] += time_ns
        elif action.phase is Phase.FORWARD:
            forward[at] += time_ns
        else:
            backward[at] += time_ns
            weight[at] += time_ns * (action.op in deferred)
    longest = [max(times[s] for times in messages.values()) for s in stages]
    return tuple(StageTimes(*times) for times in zip(forward, backward, weight, update, longest, strict=True))
