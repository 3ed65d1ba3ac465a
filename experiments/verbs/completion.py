"""Print what a shell needs to complete sbplan's verbs and flags; bash: source <(sbplan completion bash)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module

from experiments.command.console import write_out

SHELLS = ("bash", "zsh", "fish")
_BASH = """\
_sbplan() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb=${{COMP_WORDS[1]}} words=
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{verbs}"
  else
    case "$verb $before" in
{values}
      *)
        case "$verb" in
{flags}
        esac
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _sbplan sbplan
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan completion` takes."""
    parser.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="whose script to print")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    write_out({"bash": bash, "zsh": zsh, "fish": fish}[args.shell]())
    return 0


def bash() -> str:
    """The script of bash: words by verb, and by the flag before; files where there are none."""
    from experiments.cli import VERBS

    values, flags = [], []
    for verb in VERBS:
        options = list(options_of(verb))
        flags.append(f'          {verb}) words="{" ".join(flag for flag, _, _ in options)}" ;;')
        values += [f'      "{verb} {flag}") words="{" ".join(choices)}" ;;' for flag, choices, _ in options if choices]
    return _BASH.format(verbs=" ".join(VERBS), values="\n".join(values), flags="\n".join(flags))


def zsh() -> str:
    """zsh completes by the script of bash."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash()}"


def fish() -> str:
    """The script of fish: every verb and flag with what it means."""
    from experiments.cli import VERBS

    lines = [
        f"complete -c sbplan -n __fish_use_subcommand -a {verb} -d {_quoted(text)}" for verb, text in VERBS.items()
    ]
    for verb in VERBS:
        for flag, choices, text in options_of(verb):
            chosen = f" -xa {_quoted(' '.join(choices))}" if choices else ""
            when = f"-n '__fish_seen_subcommand_from {verb}'"
            lines.append(f"complete -c sbplan {when} -l {flag[2:]}{chosen} -d {_quoted(text)}")
    return "\n".join([*lines, ""])


def options_of(verb: str) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(flag, the words that it may be followed by, its help) of a verb."""
    parser = argparse.ArgumentParser(prog=f"sbplan {verb}")
    import_module(f"experiments.verbs.{verb}").add_arguments(parser)
    for action in parser._actions:
        for flag in action.option_strings:
            if flag.startswith("--"):
                words = tuple(str(word) for word in action.choices) if action.choices else ()
                yield flag, words, _first_words(action.help or "")


def _first_words(text: str) -> str:
    return text.partition(" (")[0].partition(";")[0].replace("%%", "%")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
