"""Priors of the constants of kernels: what is believed of any device before it is measured, and how firmly."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from strategy.closed_form.constants import Constant
from strategy.kernels.calibration import KernelKind
from strategy.kernels.precision import KernelPrecision

_PRODUCTS = (
    Constant("rate", 0.8, 0.3, "share of the dense peak"),
    Constant("memory", 0.8, 0.3, "share of the memory's bandwidth"),
    Constant("cache_bytes_per_s", 1.4e11, 0.7, "bytes that a multiprocessor loads from the cache"),
    Constant("fill_s", 2e-6, 1.0, "filling and draining a wave"),
    Constant("slowdown", 0.1, 1.0, "of very long kernels"),
)
_CAST_PRODUCTS = (
    Constant("rate", 0.65, 0.2, "share of the dense peak"),
    Constant("memory", 0.8, 0.3, "share of the memory's bandwidth"),
    Constant("fill_s", 1.5e-6, 1.0, "filling and draining a wave"),
    Constant("launch_s", 6e-6, 1.0, "launching the kernels of a product with a cast"),
    Constant("casting", 0.5, 0.5, "share of the memory's bandwidth of a cast"),
)
_EIGHT_BITS = (*_CAST_PRODUCTS, Constant("slowdown", 0.1, 1.0, "of very long kernels"))
_FOUR_BITS = (
    *_CAST_PRODUCTS,
    Constant("cache_bytes_per_s", 1.4e11, 0.7, "bytes that a multiprocessor loads from the cache"),
)
_ATTENTION = (
    Constant("rate", 0.8, 0.3, "share of the dense half peak"),
    Constant("exponentials_per_s", 2e10, 0.3, "of a multiprocessor"),
    Constant("memory", 0.6, 0.5, "share of the memory's bandwidth"),
    Constant("launch_s", 1e-5, 0.5, "launching"),
    Constant("cached_token_s", 1e-9, 1.0, "writing a token's keys and values into pages"),
    Constant("wide", 2.0, 0.3, "slower for wide heads"),
)
_GROUPED = (
    Constant("rate", 0.7, 0.05, "share of the dense peak"),
    Constant("weights", 0.75, 0.2, "share of the memory's bandwidth of weights"),
    Constant("activations", 0.5, 0.3, "share of the memory's bandwidth of activations"),
    Constant("fill_s", 1e-5, 1.0, "work that fills the device once"),
    Constant("launch_s", 2.5e-5, 0.5, "launching all kernels"),
    Constant("choice_s", 5e-10, 1.0, "sorting a choice"),
)
_RING = (
    Constant("rate", 0.8, 0.2, "share of the links"),
    Constant("copying", 0.35, 0.5, "share of the memory's bandwidth of a copy"),
    Constant("base_s", 8e-6, 0.5, "before the first step"),
    Constant("step_s", 1e-6, 0.7, "of a step"),
    Constant("fill_s", 2e-5, 1.0, "filling the pipeline of chunks"),
    Constant("few_peers", 0.4, 0.7, "of the links that an all-to-all lacks, times ranks"),
)
_DIRECT = (
    Constant("one_shot", 0.5, 0.5, "share of the links by one shot"),
    Constant("two_shot", 0.8, 0.3, "share of the links by two shots"),
    Constant("base_s", 4e-6, 0.5, "before anything is read"),
    Constant("peer_s", 2e-7, 0.7, "per peer"),
    Constant("second_s", 1e-5, 0.7, "of the second shot"),
    Constant("fill_s", 2e-5, 1.0, "filling the pipeline of chunks"),
)
_OF_KIND: Mapping[KernelKind, tuple[Constant, ...]] = MappingProxyType({
    KernelKind.ATTENTION: _ATTENTION,
    KernelKind.GROUPED: _GROUPED,
    KernelKind.GROUPED_LOW_LATENCY: _GROUPED,
    KernelKind.RING: _RING,
    KernelKind.DIRECT: _DIRECT,
})  # fmt: skip


def declared(kind: KernelKind, precision: KernelPrecision) -> tuple[Constant, ...]:
    """The constants that are fitted of a kind in a precision."""
    if kind is KernelKind.PRODUCTS:
        widths = {16: _PRODUCTS, 8: _EIGHT_BITS, 4: _FOUR_BITS}
        return widths[precision.multiplied_bits]
    return _OF_KIND[kind]
