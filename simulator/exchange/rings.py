"""Rings: some gradients all-reduced together, by one ring at a time."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.exchange.collectives import ring
from simulator.exchange.loop import Action
from simulator.exchange.training import Task


def reduce_together(task: Task, gradients: Sequence[int], over: Action) -> None:
    """Put gradients on the wire as one buffer; calls `over` when the ring is free again, and all are exchanged."""
    found = ring(task.fabric, sum(task.nbytes[gradient] for gradient in gradients), 0)
    task.tally.data_messages += found.messages

    def done() -> None:
        over()
        for gradient in gradients:
            task.exchanged(gradient)

    task.loop.transfer(found.legs, found.latency_ns, done)
