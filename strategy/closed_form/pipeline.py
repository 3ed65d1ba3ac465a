"""Pipeline: seconds of a step from the seconds of a stage, by micro-batches, stages and interleaving.

With p stages, m micro-batches and v virtual stages per device, the longest stage works m times and the others' single
micro-batch fills and drains the pipeline, 1/v of it where stages are interleaved (Narayanan et al., 2021, section 2.2):

    step = m x longest + (sum of the other stages) / v
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategy.closed_form.products import Floats


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Seconds of one micro-batch, forward and backward.

    `body` is of a stage's layers, `head` of the logits and the loss, `message` of what a stage with a neighbour sends
    and cannot hide. `apart` is the share of the head that the last stage has on top of its layers; the rest is shared
    out between all stages.
    """

    body: Floats
    head: Floats
    message: Floats
    apart: Floats


def step_seconds(stages: StageSeconds, micro_batches: Floats, pp: Floats, virtual: Floats) -> Floats:
    """Seconds from the first forward to the last backward pass."""
    message = np.where(pp > 1, stages.message, 0.0)
    shared = (1 - stages.apart) * stages.head / pp
    last = stages.body + stages.apart * stages.head + shared + message
    others = (pp - 1) * (stages.body + shared + message)
    return np.asarray(micro_batches * last + others / virtual, dtype=float)
