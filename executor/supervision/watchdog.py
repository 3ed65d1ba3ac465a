"""The watchdog: when a rank dies or stalls, find who, where and why, and end what is left.

The watcher is one process per node, outside MPI's reach, so that it outlives whatever the launcher does to the ranks.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from executor.supervision.failure import read_failure, record_or_say, tell_once
from executor.supervision.heartbeat import Beat, Process, RankState, process_state, read_heartbeats

_POLL_S = 0.1
_GRACE_S = 1.0
_ALIVE = (RankState.RUNNING, RankState.WAITING, RankState.SAVING)
"""States of a rank that owes a beat."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long what may go on before the job is ended.

    Attributes:
        stall_s: a rank without a beat.
        stop_s: a rank stopped by a signal.
        save_s: a rank without a beat while it saves.
        grace_s: a rank between a signal that asks it to end and its end, or the beginning of its last save.
    """

    stall_s: float = 60.0
    stop_s: float = 5.0
    save_s: float = 1800.0
    grace_s: float = 25.0


def kill_ranks(beats: Iterable[Beat], *, guards: bool = False) -> None:
    """Kill the ranks' processes that still live (their guards only when asked: a killed guard alarms mpiexec)."""
    for beat in beats:
        for process in (beat.process, beat.guard) if guards else (beat.process,):
            if process_state(process) is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)


def watch(folder: Path, job: int, num_ranks: int, limits: Limits, *, quiet: bool) -> None:
    """Watch this node's `num_ranks` ranks of `job` until all have ended; end them when one of them fails.

    Args:
        folder: the run folder with the heartbeats.
        job: what this job's heartbeats carry; others in the folder are left alone.
        num_ranks: ranks of this node.
        limits: when a rank counts as stalled.
        quiet: leave the telling to the launcher, which reads `failure.json`.
    """
    clock = _Clocks()
    failed_s, accused = 0.0, False
    while True:
        beats = read_heartbeats(folder, job)
        passed_s = clock.advance(beats)
        living = [beat for beat in beats if not _has_ended(beat)]
        failure = read_failure(folder)
        if failure is not None or accused:
            failed_s += passed_s
            # An interrupted rank may have a checkpoint to write; its guard ends it when that takes too long.
            if failed_s > _GRACE_S and not (failure is not None and failure.is_interruption):
                kill_ranks(living, guards=failed_s > 3 * _GRACE_S)
        elif (cause := clock.find_fault(beats, limits)) and not _has_finished(folder, job, cause[0]):
            accused = record_or_say(folder, *cause, job=job)  # and said, where the folder is full
            if accused and not quiet:
                tell_once(folder)
        if not living and (len(beats) >= num_ranks or clock.idle_s > 10 * _GRACE_S):
            return
        clock.first_dead |= _sleep_until_a_death(beats, _POLL_S)


def _has_finished(folder: Path, job: int, rank: int) -> bool:
    """Whether a rank says that it has ended: it may have said so after the look that found its process gone."""
    return any(beat.rank == rank and beat.state is RankState.DONE for beat in read_heartbeats(folder, job))


class _Clocks:
    """How long each rank has been gone, stopped or without a beat, as the watcher itself saw it.

    One look counts for a second at most: when the whole machine sleeps or the scheduler suspends the job, watcher
    and all, nobody is blamed on waking.
    """

    def __init__(self) -> None:
        self.idle_s = 0.0
        self.first_dead: frozenset[int] = frozenset()
        self._now_s = time.monotonic()
        self._gone_s: dict[int, float] = {}
        self._stopped_s: dict[int, float] = {}
        self._quiet_s: dict[int, float] = {}
        self._seen_ns: dict[int, int] = {}

    def advance(self, beats: Sequence[Beat]) -> float:
        """Look at all ranks once; the seconds that this look counts for."""
        before_s, self._now_s = self._now_s, time.monotonic()
        passed_s = min(self._now_s - before_s, 1.0)
        self.idle_s = 0.0 if any(process_state(beat.guard) for beat in beats) else self.idle_s + passed_s
        for beat in beats:
            state = process_state(beat.process) if beat.process.pid else "R"
            fresh = self._seen_ns.get(beat.rank) != beat.time_ns
            self._seen_ns[beat.rank] = beat.time_ns
            for counts, clock in (
                (state is None, self._gone_s),
                (state == "T", self._stopped_s),
                (not fresh and beat.state in _ALIVE, self._quiet_s),
            ):
                clock[beat.rank] = clock.get(beat.rank, 0.0) + passed_s if counts else 0.0
        return passed_s

    def find_fault(self, beats: Sequence[Beat], limits: Limits) -> tuple[int, str] | None:
        """The rank to blame and why; None while all is well.

        Of several dead, the one whose end was seen first: the others were taken down. Of several quiet, one that is
        inside an act before those that wait, and of these the one that beat last the longest ago.
        """
        unfinished = sorted((beat for beat in beats if beat.state is not RankState.DONE), key=lambda beat: beat.time_ns)
        killed = [beat for beat in unfinished if process_state(beat.guard) is None]
        killed.sort(key=lambda beat: beat.rank not in self.first_dead)
        for found, reason in (
            (killed, "its process was killed"),
            ([b for b in unfinished if self._gone_s[b.rank] > _GRACE_S], "its process ended, its guard is silent"),
            (
                [b for b in unfinished if self._stopped_s[b.rank] > limits.stop_s],
                f"stopped by a signal for more than {limits.stop_s:g} s",
            ),
        ):
            if found:
                return found[0].rank, reason
        saving = [b for b in unfinished if b.state is RankState.SAVING and self._quiet_s[b.rank] > limits.save_s]
        if saving:
            return saving[0].rank, f"a save is not through after {limits.save_s:g} s"
        quiet = [b for b in unfinished if b.state is not RankState.SAVING and self._quiet_s[b.rank] > limits.stall_s]
        if quiet:
            stuck = min(quiet, key=lambda beat: (beat.state is RankState.WAITING, beat.time_ns))
            wants = f": {stuck.waits_for}" if stuck.waits_for else ""
            return stuck.rank, f"no progress for more than {limits.stall_s:g} s{wants}"
        return None


def _has_ended(beat: Beat) -> bool:
    return process_state(beat.guard) is None and process_state(beat.process) is None


def _sleep_until_a_death(beats: Sequence[Beat], timeout_s: float) -> frozenset[int]:
    """Sleep; wake at once when a guard that was alive ends. The ranks whose guards had ended at the waking."""
    ranks = {fd: beat.rank for beat in beats if (fd := _open_process(beat.guard)) is not None}
    try:
        poll = select.poll()
        for descriptor in ranks:
            poll.register(descriptor, select.POLLIN)
        return frozenset(ranks[descriptor] for descriptor, _ in poll.poll(timeout_s * 1e3))
    finally:
        for descriptor in ranks:
            os.close(descriptor)


def _open_process(process: Process) -> int | None:
    """A descriptor that turns readable when the process ends; None where there is none (older kernels, or it ended)."""
    if process_state(process) is None:
        return None
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return None
