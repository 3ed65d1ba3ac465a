"""Closed forms: inequalities that hold for a configuration by the work of its ops and what its layers exchange."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from strategy.bounds.chunk_states import fullest_counts
from strategy.bounds.inequality import Inequality
from strategy.bounds.kept_layers import may_keep_layers
from strategy.bounds.least_bytes import LeastBytes
from strategy.bounds.least_copies import least_copies_ns
from strategy.bounds.least_dispatch import least_dispatch_ns
from strategy.bounds.least_exchange import (
    LeastAdding,
    LeastStepExchange,
    least_adding,
    least_exchange_ns,
    least_messages_ns,
    least_step_exchange,
)
from strategy.bounds.least_steps import least_steps_ns
from strategy.bounds.least_work import NEGLIGIBLE, LeastSeconds, LeastWork
from strategy.bounds.pipeline_parts import FIRST, LAST
from strategy.bounds.point import (
    FAR,
    HELD,
    MICRO,
    MICRO_COPIED,
    MICRO_OVERLAPPED,
    MICRO_WAITED,
    NEAR,
    OF_STEP,
    PARTS,
    SAVED,
    SIZE,
    SUMS,
    WAITING,
    FloatArray,
    time_at,
)
from strategy.hardware.cluster import host_memory_bytes
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import TICKS, Overlap
from strategy.space.request import Request
from strategy.space.short_model import MIDDLE

FEW = 4
"""Gradients of more micro-batches are added up and exchanged like those of so many."""


@dataclass(slots=True)
class ClosedForms:
    """What is known of configurations without choosing layouts; what was asked for is remembered.

    Attributes:
        request: what is searched for.
        work: what its training takes at least.
        layers_ns: axes (`on_axes`) -> what the layers take of a micro-batch on the tensor and context axes alone, where
            a template has told.
    """

    request: Request
    work: LeastWork
    layers_ns: dict[object, int] = field(default_factory=dict)
    are_axes_alike: bool = field(init=False)
    """Whether all data axes have alike what is exchanged along the other axes."""
    _exchange_ns: dict[object, int] = field(default_factory=dict)
    _dispatch_ns: dict[object, int] = field(default_factory=dict)
    _gradients: dict[object, tuple[LeastStepExchange, LeastAdding | None]] = field(default_factory=dict)
    _of_way: dict[object, tuple[FloatArray, list[Inequality]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.are_axes_alike = self.request.cost.is_faster_inside()

    def timed(self, config: PlanConfig) -> PlanConfig:
        """The one whose work a configuration takes no less than: where layers may keep all, nothing is done again."""
        return config.keeping_everything if may_keep_layers(self.request, config) else config

    def bytes_of_layer(self, config: PlanConfig) -> LeastBytes:
        """What a layer leaves at least, whether it computes again or keeps all."""
        again, kept = (self.work.bytes_of_layer(one) for one in (config, config.keeping_everything))
        return LeastBytes(*(min(getattr(again, one.name), getattr(kept, one.name)) for one in fields(LeastBytes)))

    def work_bounds_ns(self, configs: Sequence[PlanConfig]) -> list[int]:
        """Of a step of each, by the least work alone."""
        return least_steps_ns(self.work, [self.timed(config) for config in configs])

    def first_bounds_ns(self, configs: Sequence[PlanConfig], *, exchanges: bool = True) -> list[int]:
        """Of a step of each, by the least work and what is known of its layers; memory aside.

        `exchanges`: whether what goes on beside layers counts, and with experts, which takes longest to find.
        """
        slowed = Overlap.of(self.request.cost.cluster).slowed_ticks
        known: dict[object, tuple[int, int]] = {}
        beside_ns, following_ns = list[int](), list[int]()
        timed = [self.timed(config) for config in configs]
        again_ns = [self.again_at_least_ns(config, exchanges=exchanges) for config in configs]
        for config, more_ns in zip(timed, again_ns, strict=True):
            key = _of_layers(config)
            if key not in known:
                beside = self.exchange_ns(config) if exchanges else 0
                known[key] = beside, self.following_ns(config, exchanges=exchanges)
            exchange_ns, layers_ns = known[key]
            most_ns = max(exchange_ns, self.copies_ns(config))
            beside_ns.append(config.num_micro_batches * most_ns // config.pp)
            following_ns.append(layers_ns + more_ns + slowed * exchange_ns // TICKS)
        return list(map(max, least_steps_ns(self.work, timed, following_ns), beside_ns))

    def least_bytes(self, config: PlanConfig, least: LeastBytes | None = None) -> float:
        """What the first stage holds at least, by its layers alone; `least`: what a layer leaves, if it is known."""
        least, m, laps = least or self.bytes_of_layer(config), config.num_micro_batches, config.virtual_stages
        run, counts = (
            self.request.model.layers // (config.pp * laps),
            fullest_counts(config.schedule, config.pp, m, laps),
        )
        return max(run * (held * least.held + sums * least.sums + saved * least.saved) for held, sums, saved in counts)

    def fitting(self, configs: Sequence[PlanConfig]) -> list[bool]:
        """Whether the layers of the first stage may fit at all, of configurations that differ in schedule alone.

        On the device, and on its host what waits there.
        """
        least, limit = self.bytes_of_layer(configs[0]), self.request.memory_limit_bytes
        fits = [self.least_bytes(config, least) <= limit for config in configs]
        if configs[0].offload is Offload.NONE:
            return fits
        there = host_memory_bytes(self.request.cost.cluster)
        on_host = replace(least, held=least.on_host, sums=0.0, saved=least.waiting)
        return [fit and self.least_bytes(config, on_host) <= there for fit, config in zip(fits, configs, strict=True)]

    def following_ns(self, config: PlanConfig, *, exchanges: bool = True) -> int:
        """What follows samples takes at least; computing again what is laid out alike adds its own work, and exchanges.

        That is the work, and what is exchanged with experts, if `exchanges` count; or what a template has told.
        """
        alone = plain(config)
        once_s, once_ns = self.work.seconds(alone).following_s, self.dispatch_ns(alone) if exchanges else 0
        least_ns = max(self.layers_ns.get(on_axes(config), 0), int(once_s * 1e9) + once_ns)
        return least_ns + self.again_ns(alone, config, exchanges=exchanges)

    def again_ns(self, once: PlanConfig, config: PlanConfig, *, exchanges: bool = True) -> int:
        """What follows samples takes more than under a configuration that computes less again."""
        again_s = self.work.seconds(config).following_s - self.work.seconds(once).following_s
        exchanged_ns = max(self.dispatch_ns(config) - self.dispatch_ns(once), 0) if exchanges else 0
        return max(int(again_s * 1e9) - 1, 0) + exchanged_ns

    def again_at_least_ns(self, config: PlanConfig, *, exchanges: bool = True) -> int:
        """What computing again takes in as many layers between as must, for the first stage to fit; 0 where all do.

        The first layer does, and of those behind it on the stage the share that all stages have.
        """
        kept = self.timed(config)
        if kept.recompute is config.recompute:
            return 0
        layers, laps, limit = self.request.model.layers, config.virtual_stages, self.request.memory_limit_bytes
        run = layers // (config.pp * laps)
        least, more = self.bytes_of_layer(config), self.work.bytes_of_layer(kept).saved
        more -= least.saved
        if run < 2 or more <= 0.0 or self.least_bytes(config, replace(least, saved=least.saved + more)) <= limit:
            return 0
        share = 0.0
        for held, sums, saved in fullest_counts(config.schedule, config.pp, config.num_micro_batches, laps):
            if saved:
                others = run * (held * least.held + sums * least.sums + saved * least.saved)
                share = max(share, 1 - (limit - others) / (saved * more * (run - 1)))
        share = min(max(share - NEGLIGIBLE, 0.0), 1.0)
        return max(int(share * self.again_ns(kept, config, exchanges=exchanges) * (layers - 2) / layers) - 1, 0)

    def dispatch_ns(self, config: PlanConfig) -> int:
        """What all layers exchange with experts at least, in a micro-batch."""
        of_mesh = config.mesh, config.axes, config.strides, config.micro_batch
        key = on_axes(config) if self.are_axes_alike and not config.strides else of_mesh, config.recompute
        if key not in self._dispatch_ns:
            self._dispatch_ns[key] = self.request.model.layers * least_dispatch_ns(self.work, config)
        return self._dispatch_ns[key]

    def exchange_ns(self, config: PlanConfig) -> int:
        """What goes on beside all layers at least, in a micro-batch."""
        key = exchanging(config)
        if key not in self._exchange_ns:
            self._exchange_ns[key] = self.request.model.layers * least_exchange_ns(self.work, config)
        return self._exchange_ns[key]

    def copies_ns(self, config: PlanConfig) -> int:
        """What moves between devices and hosts beside all layers at least, in a micro-batch."""
        return self.request.model.layers * least_copies_ns(self.work, config)

    def of_way(self, way: PlanConfig) -> tuple[FloatArray, list[Inequality]]:
        """`least` and `inequalities`: once for all that differ in schedule alone."""
        key = way.in_form(Schedule.ONE_F_ONE_B, 1, ()), self.layers_ns.get(on_axes(way))
        if key not in self._of_way:
            self._of_way[key] = self.least(way), self.inequalities(way)
        return self._of_way[key]

    def least(self, way: PlanConfig) -> FloatArray:
        """(SIZE,): of every coordinate alone, for one way to treat the layers between."""
        config, held = _treated_alike(way), self.bytes_of_layer(way)
        least = least_times(self.work.seconds(config), self.request.model.layers)
        least[OF_STEP] = 0.0  # either ahead of the first micro-batch or behind the last: `inequalities`
        least[NEAR], least[FAR] = least_messages_ns(self.work, config)
        least[HELD], least[SUMS] = held.held, held.sums if config.num_micro_batches > 1 else 0.0
        return least

    def inequalities(self, way: PlanConfig) -> list[Inequality]:
        """Of several coordinates together, for one way to treat the layers between."""
        config = _treated_alike(way)
        layers, work, least = self.request.model.layers, self.work.seconds(config), self.least(way)
        exchange, adding = self.gradients(config)
        all_ns = self.following_ns(config) + (work.micro_batch_s - work.following_s) * 1e9
        found = [
            *_of_saved(self.bytes_of_layer(way).saved, self.work.bytes_of_layer(config).saved),
            *_of_step(least_times(work, layers)[OF_STEP][PARTS:]),
            *_of_exchange(exchange),
            *_of_adding(least, adding),
            Inequality(all_of_micro_batch(layers), all_ns),
        ]
        for part, beside_ns in ((MICRO_OVERLAPPED, self.exchange_ns(config)), (MICRO_COPIED, self.copies_ns(config))):
            if beside_ns:
                found.append(Inequality(all_in_micro_batch(layers, part), beside_ns))
        if adding is not None:
            beside = adding.overlapped_per_ns * all_in_micro_batch(layers, MICRO_OVERLAPPED)
            weights = all_of_micro_batch(layers) + beside
            found.append(Inequality(weights, all_ns + layers * adding.ns))
        return found

    def gradients(self, config: PlanConfig) -> tuple[LeastStepExchange, LeastAdding | None]:
        """What it takes to exchange and to add up a layer's gradients, at least."""
        often = min(config.num_micro_batches, FEW)
        key = config.mesh, config.axes, config.strides, config.zero_stage, config.recompute, often
        if key not in self._gradients:
            like = replace(config, num_micro_batches=often)
            self._gradients[key] = (
                least_step_exchange(self.work, like),
                least_adding(self.work, like),
            )
        return self._gradients[key]

    def beside(self, way: PlanConfig) -> FloatArray:
        """(SIZE,): what a way takes at least beside what follows samples."""
        config = _treated_alike(way)
        beside = least_times(self.work.seconds(config), self.request.model.layers, free=True)
        least = self.work.bytes_of_layer(config)
        beside[HELD] = least.held - least.used
        return beside


def least_times(work: LeastSeconds, layers: int, *, free: bool = False) -> FloatArray:
    """(SIZE,): the least nanoseconds of every coordinate alone; `free`: of what does not follow samples."""
    least = np.zeros(SIZE)
    seconds = [work.forward_s, work.backward_s, work.weight_s, (0.0,) * 3, work.step_s]
    if free:
        seconds[:3], seconds[4] = work.free_s, (0.0,) * 3
    for i, (ahead, within, behind) in enumerate(seconds):
        least[3 * i : 3 * i + 3] = within / layers
        least[3 * i + FIRST] += ahead
        least[3 * i + LAST] += behind
    return least * 1e9


def all_of_micro_batch(layers: int) -> FloatArray:
    """(SIZE,): the weights of all that a micro-batch takes."""
    return all_in_micro_batch(layers, MICRO) + all_in_micro_batch(layers, MICRO_WAITED)


def all_in_micro_batch(layers: int, passes: slice) -> FloatArray:
    """(SIZE,): the weights of all that there is of some passes of all layers."""
    weights = np.zeros(SIZE)
    weights[passes] = np.tile([1.0, layers - 2, 1.0], 3)
    return weights


def plain(config: PlanConfig) -> PlanConfig:
    """A single micro-batch of which everything is kept: what others take more time than."""
    return replace(
        config,
        recompute=Recompute.NONE,
        offload=Offload.NONE,
        num_micro_batches=1,
        pp=1,
        virtual_stages=1,
        schedule=Schedule.ONE_F_ONE_B,
        runs=(),
    )


def is_shared(config: PlanConfig) -> bool:
    """Whether several ranks share out the samples of one data-parallel rank, or experts."""
    return config.tp * config.cp * config.ep > 1


def on_axes(config: PlanConfig) -> tuple[object, ...]:
    """What a template without data axis depends on, recomputing aside."""
    return config.tp, config.cp, config.ep, config.context, config.micro_batch


def exchanging(config: PlanConfig) -> object:
    """What decides on that which goes on beside layers."""
    return config.mesh, config.axes, config.strides, config.zero_stage, config.recompute


def _of_layers(config: PlanConfig) -> object:
    """What decides on the time of layers in a micro-batch."""
    degrees = config.dp, config.tp, config.cp, config.ep, config.strides, config.context
    return *degrees, config.micro_batch, config.recompute, config.zero_stage, config.zero_group


def _treated_alike(way: PlanConfig) -> PlanConfig:
    """The configuration of which every layer is treated as those between are."""
    return way.keeping_everything if way.kept_layers else way


def _of_saved(ends: float, between: float) -> list[Inequality]:
    """Of what the first and the last layer save at least, and one between."""
    found = []
    for part, saved in ((FIRST, ends), (MIDDLE, between), (LAST, ends)):
        weights = np.zeros(SIZE)
        weights[[SAVED.start + part, WAITING.start + part]] = 1.0
        found += [Inequality(weights, saved)] * (saved > 0.0)
    return found


def _of_step(least_ns: FloatArray) -> list[Inequality]:
    """Of what every part, (3,), does once per step itself."""
    found = []
    for part, ns in enumerate(least_ns.tolist()):
        weights = np.zeros(SIZE)
        weights[[time_at("before_ns", part), time_at("after_ns", part)]] = 1.0
        found.append(Inequality(weights, ns))
    return found


def _of_exchange(layer: LeastStepExchange) -> list[Inequality]:
    """Of every layer: its gradients are exchanged as they arise, in every micro-batch, or behind the last of these."""
    found = []
    ways = (layer.ns, ("before_overlapped_ns", "after_overlapped_ns")), (layer.reduced_ns, ("after_overlapped_ns",))
    for part, (least_ns, once) in itertools.product(range(PARTS), ways):
        weights = np.zeros(SIZE)
        weights[[time_at(name, part) for name in ("backward_overlapped_ns", "weight_overlapped_ns")]] = layer.often
        weights[[time_at(name, part) for name in once]] = 1.0
        found += [Inequality(weights, least_ns)] * (least_ns > 0)
    return found


def _of_adding(least: FloatArray, layer: LeastAdding | None) -> list[Inequality]:
    """Of the gradients of every layer, beside what its passes take: added up whole, or reduced first."""
    found: list[Inequality] = []
    if layer is None:
        return found
    ways = (0.0, layer.ns, layer.overlapped_per_ns), (layer.ns_per_byte, layer.least_ns, 1.0)
    for part, (rate, more_ns, per_ns) in itertools.product(range(PARTS), ways):
        weights = np.zeros(SIZE)
        weights[[time_at("backward_ns", part), time_at("weight_ns", part)]] = 1.0
        value = float(weights @ least) + more_ns + rate * layer.nbytes
        weights[[time_at("backward_overlapped_ns", part), time_at("weight_overlapped_ns", part)]] = per_ns
        weights[SUMS.start + part] = rate
        found.append(Inequality(weights, value))
    return found
