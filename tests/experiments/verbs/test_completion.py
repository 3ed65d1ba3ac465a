"""Completion: what a shell offers is what the parser takes."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from experiments.cli import VERBS, main
from experiments.verbs.completion import bash, fish, options_of

PROGRAM = """{script}
COMP_WORDS=({words}) COMP_CWORD={at}
_sbplan
printf '%s ' "${{COMPREPLY[@]}}"
"""


def offered(*words: str) -> list[str]:
    """What bash offers for the last of some words."""
    quoted = " ".join(f"'{word}'" for word in words)
    program = PROGRAM.format(script=bash(), words=quoted, at=len(words) - 1)
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_bash_offers_verbs_flags_and_the_words_of_a_flag() -> None:
    assert offered("sbplan", "ex") == ["export", "explain"]
    assert offered("sbplan", "search", "--g") == ["--gpus", "--gpu", "--global-batch", "--gap"]
    assert offered("sbplan", "export", "plan.json", "--to", "d") == ["deepspeed", "dtensor"]
    assert offered("sbplan", "search", "x") == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_of_every_verb_is_offered(verb: str) -> None:
    flags = [flag for flag, _, _ in options_of(verb)]
    assert {*offered("sbplan", verb, "--")} == {*flags}
    assert all(f"__fish_seen_subcommand_from {verb}' -l {flag[2:]}" in fish() for flag in flags)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_command_prints_a_script_that_the_shell_reads(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "sbplan" in script
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
