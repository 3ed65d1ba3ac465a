"""Configuration text: the configuration of a plan in one phrase."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strategy.layout.config import PlanConfig


def degrees(config: PlanConfig) -> str:
    """A configuration in one phrase."""
    from strategy.base.units import format_bytes

    laps = f" x {config.virtual_stages}" if config.virtual_stages > 1 else ""
    kept = f" but for {len(config.kept_layers)} layers" if config.kept_layers else ""
    recomputes = "" if config.recompute == "none" else f", {config.recompute} recompute{kept}"
    offloads = "" if config.offload == "none" else f", offload of {config.offload}"
    runs = f", layers {' + '.join(map(str, config.runs))}" if config.runs else ""
    order = f", stages on shares {' '.join(map(str, config.stage_order))} of the ranks" if config.stage_order else ""
    streams = f" over {config.exchange_streams} streams" if config.exchange_streams > 1 else ""
    buckets = f", gradients in buckets of {format_bytes(config.bucket_bytes)}{streams}" if config.bucket_bytes else ""
    strides = f", strides {' '.join(map(str, config.strides))}" if config.strides else ""
    plural = "" if config.num_micro_batches == 1 else "es"
    experts = f", ep {config.ep}" if config.ep > 1 else ""
    return (
        f"dp {config.dp}{experts}, tp {config.tp}, cp {config.cp}, pp {config.pp}{laps}, "
        f"{config.num_micro_batches} micro-batch{plural} of {config.micro_batch} ({config.schedule})"
        f"{runs}{order}{strides}{recomputes}{offloads}{buckets}"
    )
