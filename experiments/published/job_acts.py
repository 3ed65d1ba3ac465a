"""A job as acts: passes of its pipeline, messages between stages, gradient exchange and update, simulated.

What an act takes is the term of the closed form that prices it (`strategy.closed_form.price`); when it happens is the
schedule's doing. A stage does nothing else while it sends, as in Megatron of 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from simulator.engine import run
from simulator.pipelines import pipeline
from simulator.simulate import step_time_ns
from strategy.base.units import to_ns
from strategy.closed_form.calibration import FittedConstants
from strategy.closed_form.job import Job, Jobs
from strategy.closed_form.price import Pricing
from strategy.closed_form.products import Floats
from strategy.layout.schedule import Schedule
from strategy.program.program import ActKind, Actor, Program, Stream, Work

BACKWARD = 2.0
"""A backward pass takes so many times a forward pass, and one more where that is done again."""


def simulated_seconds(jobs: Sequence[Job], fitted: FittedConstants) -> Floats:
    """Seconds of a step of every job, [jobs]; of jobs that neither shard parameters nor wait for a loader."""
    pricing = Pricing(Jobs.of(jobs), fitted.constants)
    terms = pricing.terms(fitted.constants)
    stages, work = terms.stages, pricing.work
    found = np.empty(len(jobs))
    for i, job in enumerate(jobs):
        apart_s = float(stages.apart[i] * stages.head[i])
        shared_s = (stages.head[i] - apart_s) / job.pp
        program = _passes(
            job,
            int(work.micro_batches[i]),
            whole_s=float(stages.body[i] + shared_s),
            forward_share=1 / (1 + BACKWARD + float(work.recompute[i])),
            head_s=apart_s,
        )
        message_s = float(stages.message[i]) / (2 * job.virtual) if job.pp > 1 else 0.0
        program = _with_messages(program, message_s, float(terms.reduced[i]), float(terms.update[i]))
        found[i] = step_time_ns(program, run(program, 1).acts) / 1e9
    return np.asarray(terms.stretch * found + terms.beside)


def _passes(job: Job, micro_batches: int, *, whole_s: float, forward_share: float, head_s: float) -> Program:
    """Both passes on every stage; the last one has the logits and the loss."""
    whole_s /= job.virtual
    program = pipeline(
        job.pp,
        micro_batches,
        Schedule.INTERLEAVED if job.virtual > 1 else Schedule.ONE_F_ONE_B,
        laps=job.virtual,
        forward_ns=to_ns(forward_share * whole_s),
        backward_ns=to_ns((1 - forward_share) * whole_s),
    )
    last = f"F{'_' * (job.virtual - 1)}{job.pp - 1}"
    actors = (
        replace(actor, work=Work(actor.work.latency_ns + to_ns(head_s))) if actor.name == last else actor
        for actor in program.actors
    )
    return replace(program, actors=tuple(actors))


def _with_messages(program: Program, message_s: float, reduced_s: float, update_s: float) -> Program:
    """Every pass is followed by a message, every step by the exchange of gradients and the update."""
    actors, streams = list(program.actors), []
    for stream in program.streams:
        turns = stream.sequence
        if stream.name == "compute":
            count, number = len(turns), len(actors)
            turns = (*chain.from_iterable((turn, number) for turn in turns), number + 1, number + 2)
            rank = stream.rank
            actors += [
                Actor(f"send {rank}", rank, ActKind.TRANSFER, acts_per_step=count, work=Work(to_ns(message_s))),
                Actor(f"exchange {rank}", rank, ActKind.ALL_REDUCE, work=Work(to_ns(reduced_s))),
                Actor(f"update {rank}", rank, ActKind.COMPUTE, work=Work(to_ns(update_s))),
            ]
        streams.append(Stream(stream.rank, stream.name, turns))
    return replace(program, actors=tuple(actors), streams=tuple(streams))
