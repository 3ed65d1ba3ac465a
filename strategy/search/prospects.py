"""Prospects: what boxes are thought to take in the end, and layouts that are likely to fit.

Rules of thumb and what proposals have shown; nothing here says what a box takes for certain.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.bounds.closed_forms import ClosedForms, is_shared
from strategy.bounds.least_exchange import LayerExchange, exchange_of_layer, handed_on_by_layer
from strategy.bounds.least_work import LeastWork
from strategy.bounds.pipeline_parts import parts_at
from strategy.bounds.point import (
    AT_HEAD,
    AT_WORK,
    KINDS_OF_BYTES,
    MESSAGES,
    MICRO_COPIED,
    MOVED,
    PASSES,
    PER_MICRO_BATCH,
    SIZE,
    TIMES,
    FloatArray,
)
from strategy.cost.measurement import Features
from strategy.graph.experts import weights_of_experts
from strategy.graph.graph import Graph, Phase, Role
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import Overlap
from strategy.lowering.folding import UNEVEN_SHARE
from strategy.lowering.lower import MOST_ACTORS
from strategy.passes.zero_layouts import shared_dim
from strategy.program.program import ActKind
from strategy.sbp.tensor import Rate
from strategy.search.box import Box
from strategy.search.mixed_proposals import mixed_proposal
from strategy.search.search_state import LayoutProposal, SearchState
from strategy.search.template.answers import Proposed
from strategy.search.template.likely_memory import likely_rows
from strategy.search.template.outer_approximation import Bound
from strategy.search.template.stages import between_places, pipelined
from strategy.space.axis_orders import placements_of, unlike_stages
from strategy.space.candidates import Form
from strategy.space.request import Request
from strategy.space.short_model import LAYERS, MIDDLE

LITTLE = 2e-3
"""By this part what is not on a path counts all the same."""
TIE = 0.005
"""What filling the memory counts at least, as a part of the step, where proposals did not fit."""
HARDER = 6.0
"""By this factor bytes count more after every such proposal."""
SQUEEZED = 0.1
"""By this part less memory is taken to be there for each of them: at what bytes are worth in all of it, what is too
heavy takes as long as what fits, and one as well as the other may be found."""
MOST_TRIES, FIRST_TRIES = 4, 8
"""So often proposals of a box are made to hold less: once something fits, and before."""
GRAIN = 1 / 128
"""Part of the memory that is told from none."""
SETTLED = 0.03
"""By this part what fits may take longer than what does not, for a box to be proposed."""
ALL_SAVED, AGAIN_SAVED, FULL_SAVED = 2.5, 1.2, 1.05
"""By these factors more is saved for the backward pass, as a rule of thumb, than has to be where several ranks share
samples: where what was gathered is kept, where memory-bound ops are done again, and where whole layers are."""
ROUGH = 1.15
"""By this factor more may be held by these rules of thumb than there is, before a box is thought to be too full: until
proposals that do not fit have shown what the rules are worth."""
OUTSIDE_HELD = 2.0
"""Times what is saved outside of layers that is there at once, with its gradients."""
SUMS_OF_LAYER, SUMS_AGAIN = 4, 6
"""Sums of what a layer hands on, along a tensor axis; and where all of it is computed again."""
GATHERED_HELD, GRADIENT_HELD = 6, 2
"""Bytes per parameter of a layer that are there at once of what was gathered, with its gradient, and of that alone."""
ROWS_HELD = 4
"""Tensors of a layer with all that its experts are handed that are there at once."""
DISPATCHES, DISPATCHES_AGAIN = 4, 6
"""Exchanges with experts of a layer, there and back in both passes; and where all of it is computed again."""
STAY, STAY_FAR = 0.03, 0.25
"""By this part more may be thought of the box that is being looked at than of another, which would be begun anew; or by
this part of what the best that is known takes more than that: the worse it is, the sooner a better one is wanted."""
COSTLY, COSTLY_IN_A_HURRY = 0.05, 0.5
"""By this part what has a template of two axes beside the data axis has to promise more to be looked at first."""
ACROSS = 1.2
"""By this factor a box is thought to take longer some of whose stages lie across nodes and others within, at first."""
UNLIKELY = 2.0
"""A box of which nothing is likely to fit is thought to take this much more than its bound; less while it is asked for
something lighter."""


class Prospects:
    """Proposals so far, and what they say of boxes."""

    def __init__(self, request: Request, work: LeastWork, forms: ClosedForms) -> None:
        self.request, self.work, self.forms = request, work, forms
        self.known = SearchState()
        self.crowding: dict[Schedule, float] = {}
        """Bytes that are held beside those that bounds count, by a sample on one rank, as proposals have shown."""
        self.rough = ROUGH
        """By how much they may hold more, as proposals that do not fit have shown."""
        self.seen_rough: dict[object, float] = {}
        """By what decides on memory, what rules of thumb hold of it over what its lightest proposal does."""
        self.graph = work.graph(Recompute.NONE)
        self.handed_on = handed_on_by_layer(self.graph)
        self.of_experts = _share_of_experts(self.graph)
        self.rows_of_experts, self.experts_per_choice = _rows_of_experts(self.graph)
        self.saved_outside = _saved_outside(self.graph)
        self.exchange_ns: dict[object, float] = {}
        """What goes on beside all layers in a micro-batch, about."""
        self.sent_ns: dict[object, float] = {}
        """What a layer adds up along a tensor axis for a micro-batch."""
        self.costly = COSTLY
        self.dispatched_ns: dict[object, float] = {}
        """What one exchange between a layer's ranks and experts takes, for a micro-batch."""
        self.across: dict[object, float] = {}
        """Mesh -> by which factor boxes take longer than their bounds count, which know the first stage's nodes alone:
        1 where all stages share nodes alike."""
        self.mixed: dict[tuple[PlanConfig, Proposed, Proposed, bool], float] = {}
        """Of ways that were mixed, what the sum of parts was multiplied by, see `SearchState.margin`."""
        self.too_many: dict[object, int] = {}
        """By what decides on memory, samples of a micro-batch with which nothing was found to fit."""

    @property
    def best_ns(self) -> float:
        """The least that plans take, and what is likely to fit."""
        fitting = self.known.fitting(self.request)
        return min(self.known.likely_ns(fitting[0]) if fitting else math.inf, self.known.planned_ns)

    def _crowded(self, box: Box, most_ns: float, squeezed: float = 0.0) -> tuple[float, Bound | None]:
        """What the configurations of a box are likely to take in the memory that is left in truth, the least of them.

        With it, where any fits, the prices at which proposals of that configuration are likely to fit. Nothing takes
        less than its bound, which knows paths and places of blocks that a guess does not. `squeezed`: bytes that are
        taken not to be there.
        """
        within, best, least_ns = box.within, None, most_ns
        for bound_ns, config in sorted(zip(box.bounds_ns, box.configs, strict=True), key=lambda pair: pair[0]):
            if within is None or bound_ns >= least_ns:
                break
            found = within.likely(config, self._crowding(box, config) + squeezed)
            likely_ns = math.inf if found.step_ns is None else max(float(found.step_ns), bound_ns)
            if likely_ns < least_ns:
                best, least_ns = found, likely_ns
        return least_ns, best

    def _crowding(self, box: Box, config: PlanConfig) -> float:
        """Bytes that a configuration holds beside those that bounds count, as proposals have shown, about.

        In whole `GRAIN`s of the memory: what is bounded with so much less memory is bounded once.
        """
        of_sample = self.crowding.get(config.schedule, 0.0)
        nbytes = box.crowding.get(config.schedule, of_sample * config.micro_batch / (config.tp * config.cp))
        grain = GRAIN * self.request.memory_limit_bytes
        return round(nbytes / grain) * grain

    def likely_to_fit(self, box: Box, most_ns: float) -> FloatArray:
        """The weights of proposals: bytes count what they are worth in the memory that is left in truth, or more.

        They count more with every proposal that did not fit, and less where one did that took much longer.
        """
        squeezed = SQUEEZED * box.harder * self.request.memory_limit_bytes
        crowded = self._crowded(box, most_ns, squeezed)[1] or self._crowded(box, most_ns)[1]
        priced = box.prices[box.config] if crowded is None else crowded
        byte = TIE * HARDER**box.harder * box.bound_ns / self.request.memory_limit_bytes
        often = likely_rows(box.config, self.request.model.layers).max(0)
        for part in (MOVED, AT_HEAD, AT_WORK):
            often[part] = 1
        weights: FloatArray = np.maximum(priced.weights, byte * often)
        return weights

    def a_little(self, box: Box, priced: FloatArray) -> FloatArray:
        """(SIZE,): small weights of everything, so that what no path passes is not laid out in any way whatever.

        Bytes, messages and copies that have no price have none here: what other boxes may take over of the answer
        depends on it, and what no path counts may be as much as one likes.
        """
        config, found = box.config, np.zeros(SIZE)
        layers = np.array([1.0, self.request.model.layers - 2, 1.0]) / config.pp
        found[TIMES] = np.tile(layers, len(PASSES))
        found[MESSAGES], found[MICRO_COPIED] = priced[MESSAGES] > 0, found[MICRO_COPIED] * (priced[MICRO_COPIED] > 0)
        for each in PER_MICRO_BATCH:
            found[each] *= config.num_micro_batches
        byte = TIE * box.bound_ns / self.request.memory_limit_bytes
        for part in KINDS_OF_BYTES:
            found[part] = priced[part].any() * byte * (layers if part.stop - part.start == len(layers) else 1)
        return LITTLE * found

    def propose(self, box: Box, answer: Proposed, point: FloatArray, kept: Proposed | None = None) -> None:
        """Add the configurations of a box under layouts, and with all `kept` between; says how crowded memory is."""
        request, best_ns, within = self.request, self.best_ns, box.within
        overlap, least_ns, fitting_ns, lightest = request.overlap_of(box.config), math.inf, math.inf, math.inf
        for one in box.configs:
            step_ns = math.inf if within is None else within.step_ns(one, point)
            if within is None or step_ns >= self.known.planned_ns:
                continue  # what is slower than what is merely likely to fit may be wanted when that does not
            between_ns = between_places(answer.messages, one)
            found = pipelined(answer.parts, one, request.model.layers, between_ns, overlap, answer.tied)
            proposal = LayoutProposal(found, answer.signatures, answer.deep_ops, answer.keeps)
            self.known.proposals.append(proposal)
            if self._across(one) > 1.0:
                self.across[_of_mesh(one)] = max(1.0, found.step_ns / step_ns)
            if step_ns >= best_ns:
                continue
            least_ns = min(least_ns, found.step_ns)
            if self.known.fits(request, proposal):
                fitting_ns = min(fitting_ns, found.step_ns)
            held = self.known.margin(one) * max(found.peak_bytes)
            lightest = min(lightest, held / request.memory_limit_bytes)
            counted = float((likely_rows(one, request.model.layers) @ point).max())
            box.crowding[one.schedule] = max(0.0, held - counted)
            self.crowding[one.schedule] = box.crowding[one.schedule] * one.tp * one.cp / one.micro_batch
        for way in (answer,) if kept is None else (answer, kept):
            if all(way.layouts != other.layouts for other in box.layouts):
                for other in box.layouts:
                    fitting_ns = min(fitting_ns, self._propose_mixed(box, way, other))
                box.layouts.append(way)
        box.tries += 1
        is_last = box.tries >= (MOST_TRIES if math.isfinite(self.best_ns) else FIRST_TRIES)
        if math.isfinite(lightest) and math.isinf(self.best_ns):
            self._learn_rough(box.config, lightest)
            is_last |= box.is_lightest(lightest)
        if is_last and math.isinf(fitting_ns) and math.isfinite(least_ns):
            self.too_many[_of_memory(box.config)] = box.config.micro_batch
        is_settled = math.isfinite(least_ns) and box.weigh(least_ns, fitting_ns, lightest, SETTLED)
        box.is_proposed |= is_last or math.isinf(least_ns) or is_settled

    def _learn_rough(self, config: PlanConfig, lightest: float) -> None:
        """The lightest proposal of a box holds this part of the memory: that says what the rules of thumb are worth."""
        key = _of_memory(config), config.micro_batch
        roughly = self._roughly_held(config) / self.request.memory_limit_bytes
        self.seen_rough[key] = max(self.seen_rough.get(key, 0.0), roughly / lightest)
        self.rough = float(np.exp(np.mean(np.log(list(self.seen_rough.values())))))

    def _propose_mixed(self, box: Box, *ways: Proposed, balances: bool = False) -> float:
        """Add what is laid out in two ways, where that is faster than what is known; the least that this takes."""
        least_ns, best_ns = math.inf, self.best_ns
        for one, other in (ways, ways[::-1]):
            for config, bound_ns in zip(box.configs, box.bounds_ns, strict=True):
                margin = self.known.margin(config, one.signatures)
                if bound_ns >= best_ns or self.mixed.get((config, one, other, balances)) == margin:
                    continue  # or nothing else fits than the last time
                self.mixed[config, one, other, balances] = margin
                found = mixed_proposal(self.request, self.known, config, one, other, best_ns, balances=balances)
                if found is not None:
                    self.known.proposals.append(found)
                    least_ns = min(least_ns, found.found.step_ns)
        return least_ns

    def propose_mixed_anew(self, boxes: Sequence[Box], is_over: Callable[[], bool], *, balances: bool = False) -> None:
        """Mix all ways that are known: plans have shown how much memory there is in truth. Or those that both fit."""
        pairs = ((box, *pair) for box in boxes for pair in itertools.combinations(box.layouts, 2))
        for box, one, other in itertools.takewhile(lambda _: not is_over(), pairs):
            self._propose_mixed(box, one, other, balances=balances)

    def most_promising(self, boxes: list[Box], latest: Box | None = None) -> Box | None:
        """The box that is thought to take least, or the latest one where that is thought to take hardly more.

        What takes long to think of others is not thought again for that.
        """
        found = self._least(boxes)
        if found is None or latest is None or latest not in boxes:
            return found
        least_ns, best_ns = self._weighed(found), self.best_ns
        more_ns = STAY_FAR * (best_ns - least_ns) if math.isfinite(best_ns) else 0.0
        return latest if self._weighed(latest) <= least_ns + max(STAY * least_ns, more_ns) else found

    def _weighed(self, box: Box) -> float:
        """What a box promises, and some more where it takes long to look into."""
        config = box.configs[0]
        return self._promise(box) * (1 + self.costly * (config.ep > 1 and config.tp * config.cp > 1))

    def _least(self, boxes: list[Box]) -> Box | None:
        """By what is known of them; what they were last thought to take is looked at anew where that is the least."""
        waiting = [(box.promise[1], i) for i, box in enumerate(boxes)]
        heapq.heapify(waiting)
        while waiting:
            i = waiting[0][1]
            least_ns = self._weighed(boxes[i])
            heapq.heapreplace(waiting, (least_ns, i))
            if waiting[0][1] == i:
                return boxes[i]
        return None

    def _promise(self, box: Box) -> float:
        """What a box is thought to take at least, in nanoseconds; remembered as long as nothing more is known of it.

        What is bounded in memory takes what it takes in the memory that is left in truth, by all cuts so far.
        """
        too_many = self.too_many.get(_of_memory(box.configs[0]), math.inf) <= box.configs[0].micro_batch
        is_doubtful = too_many or not self._is_plannable(box.configs[0])
        across = self._across(box.configs[0])
        state: object = is_doubtful, across, box.bound_ns, self.rough
        if box.within is not None:
            by_schedule = {config.schedule: config for config in box.configs}
            state = state, box.tries, box.within.count, tuple(self._crowding(box, one) for one in by_schedule.values())
        if box.promise[0] != state:
            if not math.isfinite(box.bound_ns):
                guess_ns = math.inf
            elif box.level < 2:
                guess_ns = self._guess_ns(box)
            else:
                likely_ns, crowded = self._crowded(box, math.inf)
                tried = min(box.tries / MOST_TRIES or 1.0, 1.0)
                guess_ns = likely_ns if crowded is not None else UNLIKELY**tried * box.bound_ns
            box.promise = state, across * (UNLIKELY * guess_ns if is_doubtful else guess_ns)
        return box.promise[1]

    def _is_plannable(self, config: PlanConfig) -> bool:
        """Whether ranks are likely to stand for one another, where there are too many to plan each of them.

        Not where stage 3 of ZeRO cuts a parameter into parts that are too unlike.
        """
        parts = config.shards * config.cp
        actors = len(self.graph.ops) * self.request.model.layers // LAYERS * math.prod(config.mesh)
        if config.zero_stage < 3 or actors <= MOST_ACTORS:
            return True
        shapes = (spec.shape for spec in exchange_of_layer(self.work, config).gathered)
        cut = [shape[dim] for shape in shapes if (dim := shared_dim(shape, config)) is not None]
        return all(length % parts == 0 or UNEVEN_SHARE * -(-length // parts) >= 1 for length in cut)

    def _across(self, config: PlanConfig) -> float:
        """How much longer a configuration is thought to take as some of its stages lie across nodes."""
        key = _of_mesh(config)
        if key not in self.across:
            cluster = self.request.cost.cluster  # where nodes are of several types, proposals are of one stage each
            is_across = not cluster.groups and len(unlike_stages(cluster, config)) > 1
            self.across[key] = ACROSS if is_across else 1.0
        return self.across[key]

    def _guess_ns(self, box: Box) -> float:
        """By a rule of thumb."""
        request, config, cluster = self.request, box.config, self.request.cost.cluster
        inside = cluster.devices_per_node
        uneven_ns = self._uneven_s(box) * config.num_micro_batches * 1e9
        computed_ns = (box.bound_ns if box.level else box.least_work_ns) + uneven_ns
        if config.tp > inside or not box.level:  # else bounds count what layers send
            layer_ns = self._sent_ns(config) + self._dispatched_ns(config)
            computed_ns += layer_ns * config.num_micro_batches * request.model.layers / config.pp
        crowded = max(1.0, self._roughly_held(config) / (self.rough * request.memory_limit_bytes)) ** 2
        hides = Overlap.of(cluster).allowed
        exchange_ns = (
            self.forms.exchange_ns(self.forms.timed(config)) if box.counts_exchanges else self._exchange_ns(config)
        )
        exchanged_ns = exchange_ns * config.num_micro_batches / config.pp
        least_ns = max(computed_ns, exchanged_ns) if hides else computed_ns + exchanged_ns
        return max(crowded * least_ns, box.bound_ns)

    def _uneven_s(self, box: Box) -> float:
        """By how much the fullest stage has more to do for a micro-batch than the mean, with layers dealt out best."""
        layers, forms = self.request.model.layers, tuple((c.schedule, c.virtual_stages, c.runs) for c in box.configs)
        ahead_s, within_s, behind_s = self.work.seconds(box.config).parts_s
        parts_s = np.array([ahead_s, 0.0, behind_s]) + within_s / layers
        each = _parts_of_stages(forms, box.config.pp, layers) @ parts_s
        return float((each.max(1) - each.mean(1)).min())

    def _roughly_held(self, config: PlanConfig) -> float:
        """Bytes of a device, by a rule of thumb."""
        request = self.request
        whole = request.model.parameters / (config.tp * config.pp)
        parameters = whole * (1 - self.of_experts + self.of_experts / config.ep)
        state = 0.0 if config.offload.of_optimizer else 12 * whole / config.shards
        static = state + (7 * parameters if config.zero_stage < 3 else 6 * whole / config.shards)
        in_flight = min(config.pp, config.num_micro_batches)
        saved = self.work.bytes_of_layer(config).saved * request.model.layers / config.pp
        more = {Recompute.MEMORY_BOUND: AGAIN_SAVED, Recompute.FULL: FULL_SAVED}.get(config.recompute, ALL_SAVED)
        more = more if is_shared(config) else 1.0
        behind = OUTSIDE_HELD * self.saved_outside * config.micro_batch / (config.tp * config.cp)
        layer = parameters * config.pp / request.model.layers
        passing = (GATHERED_HELD if config.zero_stage == 3 else GRADIENT_HELD) * layer
        passing += ROWS_HELD * self._most_rows(config)
        return static + max(more * saved * in_flight + passing, more * saved + behind)

    def _sent_ns(self, config: PlanConfig) -> float:
        """What a layer adds up along the tensor axis for a micro-batch, by Megatron's rule."""
        key = config.mesh, config.axes, config.strides, config.micro_batch, config.recompute is Recompute.FULL
        if key not in self.sent_ns:
            self.sent_ns[key] = self._adding_up_ns(config) * (SUMS_AGAIN if key[-1] else SUMS_OF_LAYER)
        return self.sent_ns[key]

    def _adding_up_ns(self, config: PlanConfig) -> float:
        """One all-reduce of what a layer hands on, among the ranks of a tensor axis."""
        if config.tp == 1 or self.handed_on is None:
            return 0.0
        nbytes, cost = self.handed_on.nbytes * config.micro_batch // config.cp, self.request.cost
        level = cost.cluster.level(placements_of(config)[0].devices[: config.tp])
        sent = 2 * (config.tp - 1) * nbytes // config.tp
        return cost.seconds(Features(ActKind.ALL_REDUCE, 0, sent, config.tp - 1, level)) * 1e9

    def _most_rows(self, config: PlanConfig) -> float:
        """Bytes of a micro-batch that a layer's experts on one rank have room for."""
        if not self.rows_of_experts:
            return 0.0
        room = self.request.training.expert_room or math.inf
        uneven = min(config.ep * config.tp, self.experts_per_choice, room)
        return self.rows_of_experts * config.micro_batch * uneven / (config.tp * config.cp)

    def _exchange_ns(self, config: PlanConfig) -> float:
        """What goes on beside all layers in a micro-batch: parameters gathered, gradients reduced to parts."""
        if config.dp == 1 or config.zero_stage < 2:
            return 0.0
        key = config.dp, config.shards, config.ep, config.tp, config.cp, config.zero_stage, config.recompute
        if key not in self.exchange_ns:
            known = exchange_of_layer(self.work, config)
            layer_ns = self._shared_ns(config, known, 1)
            if known.of_experts is not None:
                layer_ns += self._shared_ns(config, known.of_experts, config.ep)
            self.exchange_ns[key] = layer_ns * self.request.model.layers
        return self.exchange_ns[key]

    def _shared_ns(self, config: PlanConfig, known: LayerExchange, experts: int) -> float:
        """Of parameters that are split by expert already, or are not: between nodes, then inside of these."""
        cost, parts = self.request.cost, config.shards * config.cp // experts
        in_node = max(1, min(parts, cost.cluster.devices_per_node // (config.tp * experts)))
        specs = {ActKind.REDUCE_SCATTER: known.reduced, ActKind.ALL_GATHER: known.gathered * (config.zero_stage == 3)}
        total = 0.0
        for kind, exchanged in specs.items():
            nbytes = sum(spec.nbytes for spec in exchanged) / (config.tp * experts)
            for level, peers, of in (("inter", parts // in_node, nbytes / in_node), ("intra", in_node, nbytes)):
                if peers > 1:
                    sent = int(of * (peers - 1) / peers)
                    total += cost.seconds(Features(kind, 0, sent, peers - 1, level)) * 1e9
        return total

    def _dispatched_ns(self, config: PlanConfig) -> float:
        """What a layer sends to experts and back for a micro-batch, evenly."""
        if config.ep == 1:
            return 0.0
        times = DISPATCHES_AGAIN if config.recompute is Recompute.FULL else DISPATCHES
        key = config.ep, config.tp, config.cp, config.micro_batch
        if key not in self.dispatched_ns:
            cost, among = self.request.cost, config.tp * config.cp
            nbytes = self.rows_of_experts * config.micro_batch // among
            level = "inter" if among * config.ep > cost.cluster.devices_per_node else "intra"
            near = max(cost.cluster.devices_per_node // among, 1) - 1 if level == "inter" else 0
            sent = (config.ep - 1) * nbytes // config.ep
            act = Features(ActKind.ALL_TO_ALL, 0, sent, config.ep - 1, level, near=near)
            self.dispatched_ns[key] = cost.seconds(act) * 1e9
        return times * self.dispatched_ns[key]


@lru_cache(maxsize=1 << 12)
def _parts_of_stages(forms: tuple[Form, ...], pp: int, layers: int) -> npt.NDArray[np.int64]:
    """(forms, stages, 3): how many of the first, the middle and the last part every stage has."""
    alone = [PlanConfig(1, 1, pp, 1, pp, schedule, virtual_stages=laps, runs=runs) for schedule, laps, runs in forms]
    return np.array([parts_at(config, layers).sum(1) for config in alone])


def _saved_outside(graph: Graph) -> int:
    """Bytes of a sample that are saved for the backward pass outside of layers, most of them logits."""
    found = 0
    for name, value in graph.values.items():
        producer = graph.producer.get(name)
        if producer is None or producer.phase is not Phase.FORWARD or producer.any_layer is not None:
            continue
        if value.rate is Rate.MICRO_BATCH and any(op.phase is not Phase.FORWARD for op in graph.consumers[name]):
            found += value.spec.nbytes
    return found


def _rows_of_experts(graph: Graph) -> tuple[int, float]:
    """Bytes of a sample that a layer between hands to its experts; and how many of these there are per choice."""
    weights = weights_of_experts(graph)
    readers = [graph.by_name[name] for name in weights]
    readers = [op for op in readers if op.layer == MIDDLE and op.phase is Phase.FORWARD]
    handed = [graph.values[name].spec for op in readers for name in op.inputs if name != weights[op.name]]
    if not handed:
        return 0, 1.0
    most = max(handed, key=lambda spec: spec.nbytes)
    return most.nbytes, 1.0 if most.ragged is None else most.ragged.dims[0] / most.ragged.most


def _of_memory(config: PlanConfig) -> object:
    """What decides on the memory that a sample takes."""
    shared = config.zero_stage, config.zero_group
    return config.dp, config.ep, config.tp, config.cp, config.pp, *shared, config.recompute, config.offload


def _of_mesh(config: PlanConfig) -> object:
    """What decides on which ranks of a stage share nodes."""
    return config.mesh, config.pp, config.strides


def _share_of_experts(graph: Graph) -> float:
    """Of the parameters of a layer between, those of which there are some for each expert."""
    names = {graph.parameter_of(name) for name in weights_of_experts(graph).values()}
    sizes: dict[bool, int] = {False: 0, True: 0}
    for value in graph.with_role(Role.VARIABLE):
        readers = graph.consumers[value.name]
        if graph.parameter_of(value.name) == value.name and any(op.layer == MIDDLE for op in readers):
            sizes[value.name in names] += value.spec.size
    return sizes[True] / max(1, sum(sizes.values()))
