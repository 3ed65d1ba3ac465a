r"""Shell scripts, read as far as they are straight: the words of the command that trains, variables put in.

Variables, arrays, `+=`, `${NAME:-default}` and sums `$((A * B))` are followed, comments and `\` at the end of a line
are left out; nothing is run, and no variable of the environment is looked at. What a branch, a loop or a function sets
is not followed: `Script.open` names such variables, where the command uses them. Of several commands the one with the
most arguments counts; lines that begin with an argument belong to it, wherever they stand.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

MOST_CHARACTERS = 2**20
"""Of all words, once variables are put in."""
_NAME = r"[A-Za-z_]\w*"
_SINGLE, _DOUBLE = r"'[^']*'", r'"(?:\\[\s\S]|[^"\\])*"'
_SUM, _CALL, _TICKS = r"\$\(\((?:[^()]|\([^()]*\))*\)\)", r"\$\((?:[^()]|\([^()]*\))*\)", r"`[^`]*`"
_BRACED, _PLAIN = r"\$\{(?:[^{}]|\{[^{}]*\})*\}", rf"\$(?:{_NAME}|[0-9@*])"
_VARIABLE = re.compile(rf"{_SUM}|{_CALL}|{_TICKS}|{_BRACED}|{_PLAIN}")
_PART = re.compile(rf"{_SINGLE}|{_DOUBLE}|{_SUM}|{_CALL}|{_TICKS}|{_BRACED}|{_PLAIN}|\\[\s\S]|[^\s;&|<>()'\"`\\$]+|\$")
_REDIRECTED = re.compile(r"\d?[<>]+&?[ \t]*[^\s;&|<>()]*")
_UNQUOTED = re.compile(r"\([^\s;&|<>()'\"`$\\]+\)?[^\s;&|<>()'\"`$\\]*")
"""Brackets that a file of arguments has without quotes, as in `--moe-layer-freq ([0]*1+[1]*3)`."""
_ASSIGNED = re.compile(rf"({_NAME})(\+?)=([\s\S]*)")
_NAMED = re.compile(rf"({_NAME})(\[[@*]\])?(?::?[-=]([\s\S]*))?")
_OPENS, _CLOSES = ("if", "for", "while", "until", "case", "{"), ("fi", "done", "esac", "}")
_LEADS = ("then", "else", "do", "elif", "!", "time", "exec", "eval", "export", "declare", "local", "readonly")
_OF_ARGUMENTS = re.compile(r"ARG|OPT|FLAG", re.IGNORECASE)
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
Value = str | list[str]


@dataclass(frozen=True, slots=True)
class Script:
    """The command of a script.

    Attributes:
        words: its words, the program and what it is called by among them.
        environment: what is set for this command alone.
        open: variables of arguments that nothing sets, left out, and those that a branch, a loop or a function sets,
            as they were before it.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    open: tuple[str, ...]


_NOTHING = Script((), {}, ())


def read_script(text: str) -> Script:
    """The command that has the most arguments.

    Raises:
        ValueError: a quote or a bracket is not closed, or the words become too many.
    """
    reader = _Reader()
    bare: list[Script] = []
    best = _NOTHING
    for statement in _statements(text):
        command = reader.take(statement)
        if command.words and command.words[0].startswith("--"):
            bare.append(command)
        elif command.words and _arguments(command) >= _arguments(best):
            best = command
    parts = [best, *bare]
    opened = {name for part in parts for name in part.open}
    return Script(tuple(word for part in parts for word in part.words), best.environment, tuple(sorted(opened)))


def _arguments(command: Script) -> int:
    return sum(word.startswith("--") for word in command.words)


@dataclass(frozen=True, slots=True)
class _Array:
    """The words between the brackets of `NAME=( ... )`."""

    name: str
    appends: bool
    words: tuple[str, ...]


_Statement = list["str | _Array"]


def _statements(text: str) -> Iterator[_Statement]:
    """The statements of a text, each by its raw words; arrays are values."""
    text = text.replace("\r\n", "\n").replace("\\\n", " ")
    place, words = 0, _Statement()
    while place < len(text):
        if text[place] in " \t":
            place += 1
        elif text[place] == "#":
            place = _end_of_line(text, place)
        elif redirected := _REDIRECTED.match(text, place):
            place = redirected.end()
        elif words and (unquoted := _UNQUOTED.match(text, place)):
            words.append(f"'{unquoted[0]}'")
            place = unquoted.end()
        elif text[place] in "\n;&|()":
            if words:
                yield words
            place, words = place + 1, _Statement()
        else:
            word, place = _word(text, place)
            found = _ASSIGNED.fullmatch(word)
            if found and not found[3] and text[place : place + 1] == "(":
                inside, place = _array(text, place + 1)
                words.append(_Array(found[1], bool(found[2]), tuple(inside)))
            else:
                words.append(word)
    if words:
        yield words


def _end_of_line(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _word(text: str, place: int) -> tuple[str, int]:
    start = place
    while found := _PART.match(text, place):
        place = found.end()
    if place == start:
        raise ValueError(f"no closing {text[place]} for that of line {text.count(chr(10), 0, place) + 1}")
    return text[start:place], place


def _array(text: str, place: int) -> tuple[list[str], int]:
    """The words up to the closing bracket."""
    start, words = place, list[str]()
    while place < len(text):
        if text[place] == ")":
            return words, place + 1
        if text[place] == "#":
            place = _end_of_line(text, place)
        elif text[place].isspace() or text[place] in ";&|<>(":
            place += 1
        else:
            word, place = _word(text, place)
            words.append(word)
    raise ValueError(f"no closing ) for that of line {text.count(chr(10), 0, start) + 1}")


class _Reader:
    """The variables of a script, statement by statement."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.depth = 0
        self.characters = 0
        self._branched: set[str] = set()
        self._used: set[str] = set()

    def take(self, statement: _Statement) -> Script:
        """The command of a statement; what only sets variables has no words."""
        self._used = set()
        words = list(statement)
        while words and isinstance(words[0], str) and words[0] in (*_LEADS, *_OPENS, *_CLOSES, "function"):
            self.depth += (words[0] in _OPENS) - (words[0] in _CLOSES)
            if words[0] in ("for", "case", "function"):
                return _NOTHING
            words = words[1:]
        assigned: list[tuple[str, bool, Value]] = []
        while words:
            first = words[0]
            if isinstance(first, _Array):
                assigned.append((first.name, first.appends, [one for raw in first.words for one in self.split(raw)]))
            elif found := _ASSIGNED.fullmatch(first):
                assigned.append((found[1], bool(found[2]), self.joined(found[3])))
            else:
                break
            words = words[1:]
        if not words:
            for name, appends, value in assigned:
                self._set(name, appends, value)
            return _NOTHING
        environment = {name: value for name, _, value in assigned if isinstance(value, str)}
        command = tuple(one for raw in words if isinstance(raw, str) for one in self._command_words(raw))
        return Script(command, environment, tuple(self._used))

    def _set(self, name: str, appends: bool, value: Value) -> None:
        if self.depth > 0 or self._used:
            self._branched.add(name)
        if self.depth > 0:
            return
        before = self.values.get(name, [] if isinstance(value, list) else "")
        if not appends:
            self.values[name] = value
        elif isinstance(value, list):
            self.values[name] = [*([before] if isinstance(before, str) else before), *value]
        else:
            self.values[name] = before + value if isinstance(before, str) else [*before, value]

    def _command_words(self, raw: str) -> list[str]:
        """The words of one of a command; a quoted command line, as of `sh -c`, is one, too."""
        bare = re.fullmatch(rf"\$\{{?({_NAME})(\[[@*]\])?\}}?", raw.strip('"'))
        if bare and bare[1] not in self.values and _OF_ARGUMENTS.search(bare[1]):
            self._used.add(bare[1])
            return []
        words = self.split(raw)
        return [part for word in words for part in (word.split() if " --" in word and " " in word else [word])]

    def split(self, raw: str) -> list[str]:
        """A raw word as words: variables put in, parted at blanks outside of quotes, quotes taken off."""
        words, current = list[str](), None
        for part in (found[0] for found in _PART.finditer(raw)):
            if part[0] == '"' and (one := re.fullmatch(rf'"\$\{{({_NAME})\[@\]\}}"', part)) and one[1] in self.values:
                value = self._value(one[1])
                words += [value] if isinstance(value, str) else value
                continue
            if part[0] in "'\"\\":
                current = (current or "") + self._unquoted(part)
                continue
            text = self._put_in(part) if part[0] in "$`" else part
            pieces = [text] if text == part else text.split()
            if not pieces:
                continue
            words += [(current or "") + pieces[0], *pieces[1:-1]] if len(pieces) > 1 else []
            current = pieces[-1] if len(pieces) > 1 else (current or "") + pieces[0]
        return words if current is None else [*words, current]

    def joined(self, raw: str) -> str:
        """A raw word as one text, as an assignment takes it."""
        return "".join(
            self._unquoted(part) if part[0] in "'\"\\" else self._put_in(part) if part[0] in "$`" else part
            for part in (found[0] for found in _PART.finditer(raw))
        )

    def _unquoted(self, part: str) -> str:
        if part[0] == "'":
            return part[1:-1]
        if part[0] == "\\":
            return part[1:]
        return re.sub(r'\\(["\\$`])', r"\1", _VARIABLE.sub(lambda found: self._put_in(found[0]), part[1:-1]))

    def _put_in(self, part: str) -> str:
        """What stands for a variable or a sum; the text itself where that is not known."""
        found = self._known(part)
        self.characters += len(found)
        if self.characters > MOST_CHARACTERS:
            raise ValueError(f"more than {MOST_CHARACTERS} characters once its variables are put in")
        return found

    def _known(self, part: str) -> str:
        if part.startswith("$(("):
            total = self._sum(part[3:-2])
            return part if total is None else str(total)
        if part in ("$@", "$*"):
            return ""
        inside = part[2:-1] if part.startswith("${") else part[1:]
        named = _NAMED.fullmatch(inside)
        if named is None:
            argument = re.fullmatch(r"[0-9]:?-([\s\S]*)", inside)
            return self.joined(argument[1]) if argument and part.startswith("${") else part
        name, whole, default = named.groups()
        if name in self.values and (default is None or self.values[name]):
            value = self._value(name)
            return value if isinstance(value, str) else " ".join(value if whole else value[:1])
        if default is not None and part.startswith("${"):
            return self.joined(default)
        return part

    def _value(self, name: str) -> Value:
        if name in self._branched:
            self._used.add(name)
        return self.values[name]

    def _sum(self, text: str) -> int | None:
        """The value of whole numbers and variables under + - * / %, if it is one."""
        plain = _VARIABLE.sub(lambda found: self._known(found[0]), text)
        plain = re.sub(_NAME, lambda found: self._known("$" + found[0]), plain)
        if len(plain) > 200 or not re.fullmatch(r"[\d\s+\-*/%()]+", plain) or "**" in plain:
            return None
        try:
            return _calculated(ast.parse(plain.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError):
            return None


def _calculated(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_calculated(node.left), _calculated(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_calculated(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    raise ValueError("no sum of whole numbers")
