"""Work that a signal ends says by its exit code which signal it was."""

from __future__ import annotations

import signal

import pytest

from experiments.cli import main
from experiments.command.exit_codes import EXIT_INTERRUPTED, EXIT_TERMINATED
from experiments.command.stopping import exit_code, stopping, unwinding


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, EXIT_TERMINATED), (signal.SIGINT, EXIT_INTERRUPTED)])
def test_work_with_something_to_keep_learns_which_signal_came(signum: int, code: int) -> None:
    with stopping() as came:
        try:
            signal.raise_signal(signum)
        except KeyboardInterrupt:
            assert exit_code(came) == code
        else:
            pytest.fail("no interruption")


def test_work_with_nothing_to_keep_ends_as_terminated() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, stopping():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == EXIT_TERMINATED
    assert signal.getsignal(signal.SIGTERM) is before


def test_work_with_nothing_to_keep_ends_as_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt), stopping():
        signal.raise_signal(signal.SIGINT)


def test_a_command_unwinds_and_leaves_the_signal_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """As it was for whoever runs several in one process."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match=f"^{EXIT_TERMINATED}$"), unwinding():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sbplan ")
    assert signal.getsignal(signal.SIGTERM) is before
