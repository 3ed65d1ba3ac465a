"""Training: what one rank of `sbplan train` does, from reading the plan to the summary."""

from __future__ import annotations

import argparse
import hashlib
import math
import signal
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from executor.checkpoint import Checkpoint, latest
from executor.checkpoint.manifest import MANIFEST
from executor.data.text import read_corpus, standard_library
from executor.runtime.clocks import ClockReading
from executor.runtime.kernels.base import open_kernels
from executor.supervision.environment import find_rank, run_folder
from executor.supervision.failure import write_actors
from executor.supervision.heartbeat import Heartbeat, heartbeat_path
from executor.supervision.watchdog import Limits
from executor.train import StepReport, Trainer, check_world, program_of, reads_text
from experiments.command.console import emit, say
from experiments.jobs.non_finite import stop_at_non_finite
from experiments.jobs.ranks import agree, barrier, broadcast, gather, gather_timeline, highest, read_clocks, world
from experiments.jobs.saving import Saver, Saves, Stage, locked, refuse_if_held
from experiments.jobs.step_time import write_step_time
from experiments.jobs.transports import open_transport
from experiments.store.store import RunRecord, RunStatus, RunStore
from strategy.base.errors import InputError, PlanError
from strategy.base.interruption import Interruption, put_off
from strategy.cost.calibrate import write_measurements
from strategy.models.pretrained import open_pretrained
from strategy.models.tensor_files import files_of
from strategy.plan.observe import features_by_action, observe
from strategy.plan.plan import Plan, read_plan, write_plan
from strategy.plan.verify import Admitted, admitted
from strategy.program.protocol import admit
from strategy.program.timeline import write_timeline

if TYPE_CHECKING:
    from pathlib import Path

    from mpi4py import MPI
    from numpy.typing import NDArray

RECORDED_STEPS = 30
"""Steps whose acts are recorded; a longer run would fill the memory with records."""
ALONE_S = Limits().stall_s + 5.0
"""After so long without progress a rank speaks for itself: the watcher, who sees all ranks of a node, comes first."""
WARM_UP_STEPS = 2
"""First steps, left out of the measured step time: pages and caches are cold."""
TIMED_STEPS = 10_000
"""The newest steps, whose median time is the measured one: a training may be of any length, and memory is not."""


def train(args: argparse.Namespace) -> int:
    """One rank of a training run; returns the exit code."""
    comm = world("train")
    plan = read_plan(args.plan)
    check_world(plan, comm.size)
    agree(comm, **_same_on_all(args, plan))
    verified = admitted(plan, admit) if comm.rank == 0 else None
    problems = broadcast(comm, verified if isinstance(verified, list) else [])
    if problems:
        raise PlanError(problems[0], where=str(args.plan))
    found = find_rank()
    kernels = open_kernels(args.backend, device=0 if found is None else found.local_rank, shared=args.share_devices)
    if args.data is not None and not reads_text(plan):
        raise InputError("the model is not trained on text", where=f"--data {args.data}", hint="leave it out")
    weights = _find_weights(args.init, plan, resume=args.resume)
    corpus = standard_library() if args.data is None else read_corpus(args.data)
    refuse_if_held(comm, args.checkpoint)
    checkpoint = _find_checkpoint(args.checkpoint, resume=args.resume)
    agree(
        comm,
        text=corpus.digest if reads_text(plan) else "",
        weights=None if args.init is None else [_digest(one) for one in files_of(args.init)],
        checkpoint=None if checkpoint is None else checkpoint.folder,
        checkpoint_content=None if checkpoint is None else _digest(checkpoint.folder / MANIFEST),
    )
    made = verified.program if isinstance(verified, Admitted) else None
    program = program_of(plan) if made is None or made.alike else made
    transport, moved_by = open_transport(comm, program, kernels, share_devices=args.share_devices)
    if comm.rank == 0 and moved_by and not args.json:
        say(f"between ranks: {moved_by}")
    folder = run_folder()
    run = None
    if comm.rank == 0:
        write_actors(folder, program)
        run = RunStore(folder.parent).create("train", _inputs(args), name=folder.name)
    saves = None if args.checkpoint is None else Saves(args.checkpoint, args.checkpoint_every, args.keep)
    with locked(comm, saves, None if checkpoint is None else checkpoint.folder):
        heartbeat = Heartbeat(heartbeat_path(folder, comm.rank))
        trainer = Trainer(
            plan,
            transport,
            kernels,
            corpus,
            program=program,
            checkpoint=checkpoint,
            weights=weights,
            on_act=heartbeat.beat,
            on_wait=heartbeat.wait,
            stall_s=ALONE_S,
            record=True,
            bitwise=args.bitwise,
        )
        saver = None if saves is None else Saver(comm, saves, trainer, heartbeat, steps=args.steps)
        clocks = read_clocks(comm)
        try:
            reports = _loop(args, comm, trainer, heartbeat, saver)
        except (KeyboardInterrupt, SystemExit):
            if run is not None:
                RunStore(folder.parent).finish(run, RunStatus.INTERRUPTED, {"steps": trainer.step})
            raise
        with heartbeat.saving():
            _finish(args, comm, trainer, reports, run, clocks, moved_by)
            barrier(comm)
    transport.close()
    return 0


def _same_on_all(args: argparse.Namespace, plan: Plan) -> dict[str, object]:
    """What all ranks are to be started with: the acts of a step, and how many steps there are, follow from it."""
    return {
        "plan": plan.plan_hash,
        "config": ", ".join(f"{name} {getattr(plan.config, name)}" for name in ("dp", "ep", "cp", "tp", "pp")),
        "dtype": plan.training.dtype,
        "backend": args.backend,
        "bitwise": args.bitwise,
        "steps": args.steps,
        "checkpoint": args.checkpoint,
        "checkpoint_every": args.checkpoint_every,
        "keep": args.keep,
        "resume": args.resume,
    }


def _digest(path: Path | None) -> str:
    """What a file holds, in short."""
    if path is None:
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _inputs(args: argparse.Namespace) -> dict[str, object]:
    return {key: str(value) if value is not None else None for key, value in sorted(vars(args).items())}


def _find_weights(path: Path | None, plan: Plan, *, resume: bool) -> Mapping[str, NDArray[Any]] | None:
    """What parameters start with, where that is given.

    Raises:
        InputError: the file does not hold the plan's model, or the training does not start anew.
    """
    if path is None:
        return None
    if resume:
        raise InputError("a resumed training has its weights", where=f"--init {path}", hint="leave out --init")
    return open_pretrained(path, plan.model)


def _find_checkpoint(folder: Path | None, *, resume: bool) -> Checkpoint | None:
    """Where to go on from.

    Raises:
        InputError: nothing to resume from, a fresh start in a folder that holds checkpoints, or no folder at all.
    """
    if folder is None:
        if resume:
            raise InputError("nothing to resume from", where="--resume", hint="name the folder with --checkpoint DIR")
        return None
    if folder.exists() and not folder.is_dir():
        raise InputError("not a folder", where=f"--checkpoint {folder}")
    found = latest(folder) if folder.exists() else None
    if resume and found is None:
        raise InputError("no checkpoint to resume from", where=f"--checkpoint {folder}", hint="leave out --resume")
    if not resume and found is not None:
        raise InputError(
            f"the folder holds a checkpoint of step {found.step}",
            where=f"--checkpoint {folder}",
            hint="add --resume to go on from it, or name another folder",
        )
    return found


@dataclass(slots=True)
class ReportedSteps:
    """What a summary needs of the steps of a training, however many: how many there were, the last, times of some."""

    count: int = 0
    skipped: int = 0
    last: StepReport | None = None
    _times_s: deque[float] = field(default_factory=lambda: deque(maxlen=TIMED_STEPS))

    def add(self, report: StepReport) -> None:
        """Take note of a step."""
        if self.count in (WARM_UP_STEPS, RECORDED_STEPS + WARM_UP_STEPS):
            self._times_s.clear()
        self.count += 1
        self.skipped += report.skipped
        self.last = report
        self._times_s.append(report.step_time_s)

    @property
    def step_time_s(self) -> float | None:
        """The median, without those that warm up, or are recorded act by act, where there are others."""
        return median(self._times_s) if self._times_s else None

    @property
    def are_left_alone(self) -> bool:
        """Whether that is of steps that nobody records."""
        return self.count > RECORDED_STEPS + WARM_UP_STEPS


def _loop(
    args: argparse.Namespace, comm: MPI.Intracomm, trainer: Trainer, heartbeat: Heartbeat, saver: Saver | None
) -> ReportedSteps:
    """Step by step until the last, saving on the way; what was reported, on ranks that have it.

    Where there is somewhere to save, an interruption waits for the end of the step, which all ranks save.
    """
    reports = ReportedSteps()
    first = trainer.step
    with nullcontext(Interruption()) if saver is None else put_off() as interruption:
        while trainer.step < args.steps:
            report = trainer.run()
            if trainer.step - first == RECORDED_STEPS:
                trainer.worker.stop_recording()
            if report is not None:
                reports.add(report)
                if comm.rank == 0:
                    _tell(report, json=args.json)
            own = Stage() if saver is None else saver.stage()
            found = (int(trainer.is_broken(report)), interruption.signum, int(own.busy), int(own.failed))
            broken, signum, busy, failed = highest(comm, found)
            if saver is not None:
                saver.go_on(Stage(bool(busy), bool(failed)))
            if broken:
                stop_at_non_finite(comm, trainer, heartbeat, saver)
            if saver is not None:
                _save_if_due(args.steps, comm, saver, trainer, interrupted=bool(signum))
            if signum:
                raise KeyboardInterrupt if signum == signal.SIGINT else SystemExit(128 + signum)
    return reports


def _save_if_due(steps: int, comm: MPI.Intracomm, saver: Saver, trainer: Trainer, *, interrupted: bool) -> None:
    if interrupted:
        if saver.save_now(then="there is no time for another try") and comm.rank == 0:
            say(f"sbplan: stopped after step {trainer.step}, which is saved in {saver.saves.folder}")
    elif trainer.step == steps:
        saver.save_at_last()
    elif trainer.step % saver.saves.every == 0:
        saver.begin()


def _tell(report: StepReport, *, json: bool) -> None:
    if json:
        emit({key: _told(figure) for key, figure in asdict(report).items()})
    else:
        skipped = "  skipped: its gradients are not finite" if report.skipped else ""
        say(f"step {report.step:4d}  loss {report.loss:.4f}  {report.step_time_s * 1e3:.1f} ms{skipped}")


def _told(figure: float | None) -> float | None:
    """A figure as JSON can say it: nothing where it is not finite."""
    return figure if figure is not None and math.isfinite(figure) else None


def _finish(
    args: argparse.Namespace,
    comm: MPI.Intracomm,
    trainer: Trainer,
    reports: ReportedSteps,
    run: RunRecord | None,
    clocks: ClockReading,
    moved_by: str,
) -> None:
    """Gather what was measured; rank 0 writes the run folder and the summary."""
    plan, folder = trainer.plan, run_folder()
    recorded = min(reports.count, RECORDED_STEPS) if comm.rank == 0 else 0
    recorded = broadcast(comm, recorded)
    timeline = gather_timeline(comm, trainer.program, trainer.worker, recorded, clocks) if recorded else None
    sent = gather(comm, sum(trainer.worker.transport.bytes_sent.values()))
    registers = gather(comm, trainer.worker.registers.nbytes + trainer.worker.summation_nbytes)
    scratch = gather(comm, trainer.worker.scratch_nbytes)
    if run is None or sent is None:
        return
    steps = max(reports.count, 1)
    summary = _summary(trainer, reports) | {
        "sent_bytes_per_step": [total // steps for total in sent],
        "register_bytes": registers,
        "scratch_bytes": scratch,
        "run": str(folder),
        **({"between_ranks": moved_by} if moved_by else {}),
    }
    write_plan(plan, folder / "plan.json")
    if timeline is not None:
        write_timeline(timeline, folder / "timeline.json.gz")
        if recorded > WARM_UP_STEPS:
            rows = observe(
                timeline,
                trainer.program,
                features_by_action(plan),
                plan.cost,
                source=folder.name,
                steps=range(WARM_UP_STEPS, recorded),
            )
            write_measurements(rows, folder / "measurements.json")
            if reports.are_left_alone and reports.step_time_s is not None:
                write_step_time(folder, reports.step_time_s)
    RunStore(folder.parent).finish(run, RunStatus.DONE, summary)
    if args.json:
        emit(summary)
    else:
        say(f"run folder: {folder}")


def _summary(trainer: Trainer, reports: ReportedSteps) -> dict[str, object]:
    plan, claims = trainer.plan, trainer.plan.claims
    measured = reports.step_time_s
    predicted = claims.step_time_s
    peaks = zip(claims.peak_memory_bytes, trainer.summation_nbytes, strict=True)
    return {
        "steps": trainer.step,
        "predicted_step_time_s": predicted,
        "measured_step_time_s": measured,
        "error": None if measured is None else abs(predicted - measured) / measured,
        "final_loss": None if reports.last is None else _told(reports.last.loss),
        "skipped_steps": reports.skipped,
        "peak_memory_bytes": [sum(both) for both in peaks],
        "peak_host_memory_bytes": list(claims.peak_host_memory_bytes),
        "plan_hash": plan.plan_hash,
    }
