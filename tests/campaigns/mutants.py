"""Mutants of the source: one expression changed, and some test must fail, half of the time one of `make quick`.

    python -m tests.campaigns mutants --cases 60 --seed 0 [--base COMMIT] [--quick] [--keep FOLDER]

A copy of the tree is mutated, never the tree. A mutant is put to those tests alone that run its line: first to those
of `make quick`, then to those that mirror the rooms that mutants are drawn from, then to the others; in each of these
rings the shortest first, up to `MOST_S` of them. Which tests of a ring run a line is recorded by one run of them under
coverage, once the first mutant gets as far. A test that fails without the mutant as well says nothing. With `--base`,
mutants are of functions that an older commit has, too, and what is not caught is put to its tests: they must not catch
it. With `--quick`, the tests of `make quick` alone are recorded and asked, in a tenth of the time. With `--keep`, the
copies and what was recorded stay in a folder, where a later run goes on with them.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from subprocess import PIPE

from coverage import CoverageData

from strategy.base.errors import present
from tests.campaigns.outcome import Outcome
from tests.support.reach import TIMES
from tests.support.source_mutants import Mutant, drawn, mutants_of

ROOT = Path(__file__).parent.parent.parent
ROOMS = (
    ("strategy/sbp/*.py",),
    ("strategy/comm/*.py",),
    ("strategy/program/*.py",),
    ("strategy/plan/*.py", "strategy/ilp/check.py"),
    ("executor/checkpoint/*.py",),
    ("strategy/layout/*.py",),
    ("strategy/passes/*.py",),
    ("strategy/lowering/*.py",),
    ("strategy/ilp/**/*.py",),
    ("strategy/cost/*.py",),
)
QUOTAS = {"caught": 0.8, "caught by make quick": 0.4}
"""Of all mutants; some change nothing that anybody could see."""
MOST_S = 60.0
"""Seconds of tests, when nothing is changed, that a mutant is put to."""
HUNG = 4
"""Tests that take so many times their seconds when nothing is changed, and half a minute, have caught a mutant."""
EQUIVALENT = {
    "strategy/program/protocol.py Protocol.may_act: constant: 1 -> (2)": "more than `oldest`, by however much",
    "strategy/sbp/tensor.py intersect: comparison: b < d -> (b <= d)": "of two that are equal, either",
    "strategy/comm/boxing.py _may_reduce: least, most: any(isinstance(source[axis], Partial) for axis in changed) -> "
    "(all((isinstance(source[axis], Partial) for axis in changed)))": "axes that change are of one form there",
    "strategy/comm/boxing.py _with_nested: arguments: zip(source, target, strict=True) -> "
    "(zip(target, source, strict=True))": "what either splits is put together",
}
"""Mutant -> why it changes nothing that anybody could see: it is not drawn."""
PACKAGES = ("strategy", "simulator", "executor", "experiments", "tests")


@dataclass(slots=True)
class Reach:
    """Which tests run a line, and how long each takes."""

    seconds: Mapping[str, float]
    """Test -> seconds, set-up included."""
    tests: Mapping[tuple[str, int], frozenset[str]]
    """(file, line) -> tests."""

    def of(self, mutant: Mutant) -> list[str]:
        """Tests that run the line of a mutant, the shortest first."""
        found = self.tests.get((mutant.path, mutant.line), frozenset())
        return sorted(found, key=lambda test: (self.seconds[test], test))


def reach_of(data: CoverageData, seconds: Mapping[str, float], root: Path) -> Reach:
    """What coverage has recorded below `root` with the plugin `tests/support/reach.py`.

    All tests of a file are taken to run what the fixtures of one of them ran.
    """
    of_file: dict[str, list[str]] = defaultdict(list)
    for test in seconds:
        of_file[test.split("::")[0]].append(test)
    tests: dict[tuple[str, int], frozenset[str]] = {}
    for path in data.measured_files():
        for line, contexts in data.contexts_by_lineno(path).items():
            reached = [context.rsplit("|", 1) for context in contexts if context]
            found = {test for test, phase in reached if phase == "call" and test in seconds}
            found.update(one for test, phase in reached if phase == "setup" for one in of_file[test.split("::")[0]])
            tests[str(Path(path).relative_to(root)), line] = frozenset(found)
    return Reach(seconds, tests)


@dataclass(frozen=True, slots=True)
class Ring:
    """Tests that are asked together: those of some files and folders, but for those of others."""

    name: str
    places: tuple[str, ...]
    but: tuple[str, ...] = ()


@dataclass(slots=True)
class Tree:
    """A copy of a tree that may be mutated."""

    root: Path
    reached: dict[Ring, Reach] = field(default_factory=dict)
    unsound: set[str] = field(default_factory=set)
    """Tests that fail when nothing is changed."""
    server: subprocess.Popen[str] | None = None

    def reach(self, ring: Ring) -> Reach:
        """Which tests of a ring run a line; remembered."""
        if ring not in self.reached:
            held, times = (self.root / f"reach-{ring.name}.{kind}" for kind in ("coverage", "times"))
            if not times.exists():
                self._record([*ring.places, *(f"--ignore={place}" for place in ring.but)], held)
                (self.root / TIMES).replace(times)  # last: what has times was recorded whole
            self.reached[ring] = self._recorded(held, times)
        return self.reached[ring]

    def _record(self, tests: Sequence[str], held: Path) -> None:
        """Run tests under coverage."""
        times = self.root / TIMES
        times.unlink(missing_ok=True)
        include = ",".join(str(self.root / pattern).replace("**/", "") for room in ROOMS for pattern in room)
        command = ["coverage", "run", f"--data-file={held}", f"--include={include}", "-m", "pytest", "-p", "reach"]
        # an older tree may not know all of these marks
        command += ["-q", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib"]
        command += ["-m", "not slow and not mpi and not long", *tests]
        subprocess.run(
            [sys.executable, "-m", *command], cwd=self.root, env=self._environment(), capture_output=True, check=False
        )

    def _recorded(self, held: Path, times: Path) -> Reach:
        seconds: dict[str, float] = defaultdict(float)
        for line in times.read_text(encoding="utf-8").splitlines():
            test, duration_s, passed = json.loads(line)
            seconds[test] += duration_s
            self.unsound.update([] if passed else [test])
        data = CoverageData(str(held))
        data.read()
        return reach_of(data, seconds, self.root)

    def failing(self, tests: Sequence[str], mutant: Mutant, cpu_s: float) -> str | None:
        """The first of some tests that fails with a mutant, and passes without; "time" where they do not end."""
        left = [test for test in tests if test not in self.unsound]
        while left:
            with self._changed(mutant):
                failed = self._first_failure(left, cpu_s)
            if failed not in left or self._first_failure([failed], cpu_s) is None:
                return failed
            self.unsound.add(failed)
            left.remove(failed)
        return None

    def _first_failure(self, tests: Sequence[str], cpu_s: float) -> str | None:
        listed, said = self.root / "listed.txt", self.root / "said.txt"
        listed.write_text("\n".join(tests), encoding="utf-8")
        arguments = ["-x", "-q", "-rfE", "--no-header", "-p", "no:xdist", "-p", "no:cacheprovider", f"@{listed}"]
        status = self._ask(arguments, cpu_s, said)
        if status in ("0", "time"):
            return None if status == "0" else status
        told = said.read_text(encoding="utf-8").splitlines()
        lines = [line.split(" ", 1)[1] for line in told if line.startswith(("FAILED ", "ERROR "))]
        named = [test for test in tests for line in lines if line == test or line.startswith(f"{test} - ")]
        return named[0] if named else "nothing could be collected"

    def _ask(self, arguments: Sequence[str], cpu_s: float, said: Path) -> str:
        """The exit status of pytest, or "time"."""
        if self.server is None:
            script = str(ROOT / "tests" / "support" / "forked_pytest.py")
            self.server = subprocess.Popen(
                [sys.executable, script], cwd=self.root, env=self._environment(), stdin=PIPE, stdout=PIPE, text=True
            )
        requests, answers = present(self.server.stdin, "a pipe"), present(self.server.stdout, "a pipe")
        requests.write(json.dumps([list(arguments), math.ceil(cpu_s), str(said)]) + "\n")
        requests.flush()
        return answers.readline().strip()

    def _environment(self) -> dict[str, str]:
        places = os.pathsep.join([str(self.root), str(ROOT / "tests" / "support")])
        return {**os.environ, "PYTHONPATH": places, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}

    def close(self) -> None:
        """End the process that runs tests."""
        if self.server is not None:
            self.server.communicate()

    @contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        """The tree with a mutant: kept machine code is dropped where a compiled function changes, and put back."""
        path = self.root / mutant.path
        source, stat, kept = path.read_text(encoding="utf-8"), path.stat(), path.parent / "__pycache__"
        with tempfile.TemporaryDirectory() as folder:
            if kept.exists():
                shutil.copytree(kept, Path(folder) / "kept")
            for held in kept.glob("*.nb?") if mutant.compiled else ():
                held.unlink()
            path.write_text(mutant.applied(source), encoding="utf-8")
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 2 * 10**9))  # never the bytecode of the other
            try:
                yield
            finally:
                path.write_text(source, encoding="utf-8")
                os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
                if kept.exists():
                    shutil.copytree(Path(folder) / "kept", kept, dirs_exist_ok=True)


@cache
def bodies(root: Path, path: str) -> Mapping[str, str]:
    """Function of a file -> its statements, without the docstring."""
    found: dict[str, str] = {}
    stack: list[tuple[str, ast.AST]] = [("", ast.parse((root / path).read_text(encoding="utf-8")))]
    while stack:
        within, node = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                stack.append((f"{within}{child.name}.", child))
            elif isinstance(child, ast.FunctionDef):
                has_docstring = ast.get_docstring(child) is not None
                found[within + child.name] = "\n".join(map(ast.unparse, child.body[has_docstring:]))
    return found


def twin(mutant: Mutant, root: Path, old: Path) -> Mutant | None:
    """The same change in an older tree, where exactly one function has the same statements and last name."""
    name, body = mutant.function.split(".")[-1], bodies(root, mutant.path)[mutant.function]
    homes = [
        (path, function)
        for path in old_sources(old)
        for function, statements in bodies(old, path).items()
        if statements == body and function.split(".")[-1] == name
    ]
    if len(homes) != 1:
        return None
    ((path, function),) = homes
    mine = _of_function(root, mutant.path, mutant.function)
    theirs = _of_function(old, path, function)
    return theirs[mine.index(mutant)] if len(mine) == len(theirs) else None


@cache
def old_sources(old: Path) -> tuple[str, ...]:
    """The sources of an older tree that its rooms can stand in."""
    found = [*old.glob("strategy/**/*.py"), *old.glob("executor/**/*.py")]
    return tuple(sorted(str(path.relative_to(old)) for path in found))


def _of_function(root: Path, path: str, function: str) -> list[Mutant]:
    held = mutants_of(path, (root / path).read_text(encoding="utf-8"))
    return [mutant for mutant in held if mutant.function == function]


def run(cases: int, seed: int, base: str | None = None, *, quick: bool = False, keep: Path | None = None) -> Outcome:
    """Put `cases` mutants to the tests; with `base`, those alone that these or the tests of that commit catch.

    With `quick`, all that is asked is how many the tests of `make quick` catch.
    """
    outcome = Outcome({name: share for name, share in QUOTAS.items() if not quick or name == "caught by make quick"})
    with _folder(keep) as folder, older_tree(base, folder / "old") as old_root:
        tree, number, seen = copied(ROOT, folder / "new"), seed, set[Mutant]()
        rings = rings_of(tree.root)[: 1 if quick else None]
        old = None if old_root is None else Tree(old_root)
        while outcome.cases < cases:
            mutant = drawn(tree.root, ROOMS, number)
            options = [f" --base {base}"] * bool(base) + [" --quick"] * quick
            again = f"python -m tests.campaigns mutants --cases 1 --seed {number}" + "".join(options)
            number += 1
            older = None if old is None else twin(mutant, tree.root, old.root)
            if mutant in seen or mutant.change in EQUIVALENT or (old is not None and older is None):
                continue
            seen.add(mutant)
            by = caught(tree, mutant, rings)
            print(f"{number - 1}: {mutant}: {by or 'not caught'}", file=sys.stderr, flush=True)
            lost = []
            if by is None and old is not None and older is not None:
                by_old = caught(old, older, [Ring(str(base), ("tests",))])
                print(f"{number - 1}: {by_old or f'{base}: not caught'}", file=sys.stderr, flush=True)
                if by_old is None:
                    continue
                lost.append(f"{mutant} is not caught; {by_old}")
            outcome.add(again, lost, exercised(mutant, by))
    return outcome


def rings_of(root: Path) -> list[Ring]:
    """Tests in the order in which they are asked: of `make quick`, of the rooms, the others."""
    quick = quick_files(root)
    rooms = sorted({f"tests/{pattern.split('/*')[0]}" for room in ROOMS for pattern in room})
    mirrors = tuple(place for place in rooms if (root / place).is_dir() and not is_among(place, quick))
    return [Ring("quick", quick), Ring("mirror", mirrors, quick), Ring("other", ("tests",), (*quick, *mirrors))]


def caught(tree: Tree, mutant: Mutant, rings: Iterable[Ring]) -> str | None:
    """The ring and the test that catches a mutant, or "time"; the first rings are asked first."""
    for ring in rings:
        reach, chosen, base_s = tree.reach(ring), list[str](), 0.0
        for test in reach.of(mutant):
            if base_s + reach.seconds[test] <= MOST_S:
                chosen.append(test)
                base_s += reach.seconds[test]
        failed = tree.failing(chosen, mutant, 30 + HUNG * base_s)
        if failed is not None:
            return f"{ring.name}: {failed}"
    return None


def exercised(mutant: Mutant, by: str | None) -> Iterator[str]:
    """What a case counts for."""
    yield mutant.kind
    yield mutant.path.rsplit("/", 1)[0]
    if by is not None:
        yield "caught"
        if by.startswith("quick: "):
            yield "caught by make quick"


def is_among(test: str, places: Iterable[str]) -> bool:
    """Whether a test is of one of some files and folders."""
    path = test.split("::")[0]
    return any(path == place or path.startswith(f"{place}/") for place in places)


@cache
def quick_files(root: Path) -> tuple[str, ...]:
    """Files and folders of `make quick`."""
    held = (root / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (listed,) = re.findall(r"^QUICK := (.*)$", held, re.MULTILINE)
    return tuple(listed.split())


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Where the copies lie: a folder that is kept, or one for this run alone."""
    if keep is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()


def copied(root: Path, to: Path) -> Tree:
    """A copy of a tree with its compiled code, and nothing that is not its own; or what was copied before."""
    if to.exists():
        return Tree(to)
    to.mkdir()
    for name in PACKAGES:
        shutil.copytree(root / name, to / name)
    for path in root.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy2(path, to)
    shutil.copytree(root / "docs", to / "docs")
    return Tree(to)


@contextmanager
def older_tree(base: str | None, to: Path) -> Iterator[Path | None]:
    """A tree of a commit, while it is needed; or what was made of it before."""
    if base is None or to.exists():
        yield None if base is None else to
        return
    subprocess.run(["git", "worktree", "add", "--detach", "--quiet", to, base], cwd=ROOT, check=True)
    (to / ".git").unlink()
    subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
    yield to
