"""What launchers leave in the environment, and where mpiexec is found."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from executor.supervision.environment import find_mpiexec, find_rank, job_name, share_device
from strategy.base.errors import EnvironmentLacks, InputError


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (3, 4, 1, 2)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
                "SLURM_PROCID": "0",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_NUM_TASKS": "2",
            },
            (5, 8, 1, 4),
        ),
        (
            {
                "SLURM_PROCID": "6",
                "SLURM_STEP_NUM_TASKS": "7",
                "SLURM_LOCALID": "0",
                "SLURM_NODEID": "3",
                "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
            },
            (6, 7, 0, 1),
        ),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}, None),
    ],
)
def test_the_launcher_is_told_by_what_it_leaves_in_the_environment(
    environment: Mapping[str, str], expected: tuple[int, int, int, int] | None
) -> None:
    found = find_rank(environment)
    assert (found and (found.rank, found.size, found.local_rank, found.local_size)) == expected


@pytest.mark.parametrize("rank", ["abc", "", "-1", "1.5", "9" * 20, "9" * 5000, "2"])
def test_what_no_launcher_leaves_is_refused(rank: str) -> None:
    with pytest.raises(InputError, match=r"^PMI_RANK: not a "):
        find_rank({"PMI_RANK": rank, "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"})


def test_a_process_without_launcher_is_a_job_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a launcher the ranks of one job share its name."""

    def name_of(pid: int) -> str:
        monkeypatch.setattr(os, "getpid", lambda: pid)
        return job_name()

    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert name_of(1) != name_of(os.getppid())
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert name_of(1) == name_of(os.getppid())


def test_mpiexec_beside_python_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, on_path = tmp_path / "bin", tmp_path / "path"
    for folder in (beside, on_path):
        folder.mkdir()
        (folder / "mpiexec").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setenv("PATH", str(on_path))
    assert find_mpiexec() == beside / "mpiexec"
    (beside / "mpiexec").unlink()
    assert find_mpiexec() == on_path / "mpiexec"
    (on_path / "mpiexec").unlink()
    with pytest.raises(EnvironmentLacks, match=r"pip install \"sbplan\[mpich\]\"") as caught:
        find_mpiexec()
    assert caught.value.exit_code == 5


def test_two_jobs_of_one_batch_script_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both see Slurm's job in the environment; that names a job of ours only where srun made the ranks."""

    def name_of(launcher: int) -> str:
        monkeypatch.setattr(os, "getppid", lambda: launcher)
        return job_name()

    monkeypatch.setenv("SLURM_JOB_ID", "77")
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert name_of(1) != name_of(os.getpid())
    monkeypatch.delenv("MPI_LOCALRANKID")
    for name, value in {"SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    first = name_of(1)
    assert first == name_of(os.getpid())
    monkeypatch.setenv("SLURM_STEP_ID", "1")
    assert name_of(1) != first


@pytest.mark.parametrize(("version", "told"), [(22809, "NCCL_HOSTID"), (23000, "NCCL_MULTI_RANK_GPU_ENABLE")])
def test_ranks_of_one_gpu_look_like_hosts_of_their_own_to_an_old_nccl(
    monkeypatch: pytest.MonkeyPatch, version: int, told: str
) -> None:
    for rank in (0, 1):
        variables: dict[str, str] = {}
        monkeypatch.setattr(os, "environ", variables)
        share_device(version, rank)
        assert told in variables
        assert variables.get("NCCL_HOSTID") == (f"r{rank}" if version < 23000 else None)
