"""The house itself: what is tracked, what is packaged, what the Makefile and the gate do."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from strategy.graph.ops import REGISTRY

ROOT = Path(__file__).parent.parent
PACKAGES = ("strategy", "simulator", "executor", "experiments")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a source: most checks look through all of them."""
    return ast.parse(path.read_text())


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a syntax tree: to walk it takes as long as to parse it."""
    return tuple(ast.walk(tree))


@pytest.fixture(scope="module", autouse=True)
def trees_of_this_file_alone() -> Iterator[None]:
    """They take 200 MB."""
    yield
    nodes.cache_clear()
    parsed.cache_clear()


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def dry_run(target: str, folder: Path) -> str:
    (folder / "Makefile").write_text((ROOT / "Makefile").read_text())
    return subprocess.run(["make", "--dry-run", target], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_no_tracked_file_is_large() -> None:
    large = {path.name: path.stat().st_size for path in tracked() if path.stat().st_size > 2 * 2**20}
    assert large == {}


LONGEST = 500
"""Lines of a module: a file holds one idea, and a longer one has been seen to hold two."""


def test_no_module_is_long() -> None:
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


def test_every_folder_of_code_is_a_package() -> None:
    """A folder without `__init__.py` would be left out by mypy and the import contracts."""
    folders = {path.parent for path in SOURCES if "notebooks" not in path.parts}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed_and_shipped(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
    assert package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert package in PROJECT["tool"]["mypy"]["files"]
    assert package in PROJECT["tool"]["importlinter"]["root_packages"]


def test_the_entry_can_be_the_script() -> None:
    """Installers copy its mode and rewrite its first line, if that names python."""
    entry = ROOT / "experiments" / "entry.py"
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-scripts"] == {
        str(entry.relative_to(ROOT)): "sbplan"
    }
    assert entry.stat().st_mode & 0o111 == 0o111
    assert entry.read_text().startswith("#!/usr/bin/env python3\n")


def test_nothing_of_the_house_uses_pickle_eval_or_a_shell() -> None:
    found = []
    for path in SOURCES:
        for node in nodes(parsed(path)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                wrong = {"pickle", "marshal", "shelve", "dill", "cloudpickle"} & {n.partition(".")[0] for n in names}
            elif isinstance(node, ast.Call):
                wrong = {"eval", "exec"} & {getattr(node.func, "id", "")}
                wrong |= {keyword.arg for keyword in node.keywords if keyword.arg == "shell"}
            else:
                continue
            found += [f"{path.relative_to(ROOT)}:{node.lineno}: {word}" for word in sorted(wrong)]
    assert found == []


@pytest.mark.parametrize(
    ("target", "job"), [("demo", "/sbplan demo"), ("quick", "-m pytest -n 2 -q"), ("test", "-m pytest -n 2")]
)
def test_make_installs_first_and_only_once(tmp_path: Path, target: str, job: str) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "entry.py").touch()
    first = dry_run(target, tmp_path)
    assert first.index("-m venv") < first.index("pip install") < first.index(job)

    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    again = dry_run(target, tmp_path)
    assert "pip install" not in again
    assert job in again


def test_make_refuses_an_old_python(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\n[ $1 = -V ] && echo Python 3.9.2\nexit 1\n")
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "test", f"PYTHON={old}", f"VENV={tmp_path}/venv"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "sbplan needs Python 3.11 or newer" in done.stderr
    assert "Python 3.9.2" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_the_gate_runs_every_check() -> None:
    gate = (ROOT / ".ci" / "run").read_text()
    lint = dry_run_lint()
    assert gate.rstrip().endswith("make test")
    assert "make lint" in gate
    assert "set -euo pipefail" in gate
    for check in ("ruff check", "ruff format --check", "mypy", "lint-imports", "codespell"):
        assert check in lint


def dry_run_lint() -> str:
    return subprocess.run(["make", "--dry-run", "lint"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


EMITTERS = {
    "Op": 1,
    "add": 1,
    "apply": 1,
    "_add": 2,
    "operate": 0,
    "op": 0,
    "derived": 1,
    "Lineage": 0,
    "_with": 0,
    "_reduce": 0,
    "_experts": 1,
    "follow": 2,
    "Noted": 0,
}
"""What emits an op -> which of its arguments is the kind; those before it are names."""
ATTRIBUTE_READERS = {"int_attr", "float_attr", "ints_attr"}
TAKE_APART = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "find"}
KINDS_KNOWN: Mapping[str, str] = {
    "strategy/program/program.py: 'slice' 'copy'": "kinds of acts, not of ops",
    "strategy/passes/updates.py: 'sgd' 'adam' 'adamw' 'adagrad'": "optimisers, whose updates are emitted",
    "strategy/passes/training.py: 'report'": "the name of the op that is emitted as it",
    "strategy/nn/*.py: 'attention' 'silu' 'gelu' 'gelu_exact' 'relu'": "the names of what layers emit",
    "strategy/models/*.py: 'silu' 'gelu' 'gelu_exact' 'relu' 'sigmoid' 'softmax' 'layer_norm' 'attention' 'gather' "
    "'cross_entropy'": (
        "what a description or recording says that a model emits, and words of published configs and weights"
    ),
    "strategy/closed_form/price.py: 'gather'": "a figure of a framework's profile",
    "experiments/*.py: 'log' 'report'": "what matplotlib calls a logarithmic axis; the command that writes a page",
    "strategy/graph/graph.py: kind in MOVES": "a graph lies below ops; its memories name what brings tensors there",
    "strategy/cost/cost.py: step.kind not in PARTS": "kinds of acts, not of ops",
    "strategy/graph/builder.py: 'report' 'learning_rate' 'square'": "names of ops that nothing of a model is called by",
}
"""File, and what stands there of the kinds of ops -> why it may."""
TRANSLATORS = (
    *("strategy/models/imported/", "strategy/trainers/"),
    *("experiments/bench/torch_models.py", "executor/gpu_acceptance/pytorch.py"),
)
"""Say what operators, activations and optimisers of other frameworks are called: they name kinds as ops do."""


def callee(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def branches(node: ast.expr) -> Iterator[ast.expr]:
    """What an argument may be: both branches of a condition."""
    if isinstance(node, ast.IfExp):
        yield from (*branches(node.body), *branches(node.orelse))
    else:
        yield node


def emitted(tree: ast.AST) -> Iterator[ast.expr | None]:
    """Where a kind may stand: in a call that emits an op, in `replace(op, kind=...)`; where it is an attribute's name.

    Attributes are read by `int_attr` and the like, asked for by `in op.attrs`, and written as the keys of a dict that
    is an argument of what emits an op, or is assigned to a name that ends with `attrs`.
    """
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            position = EMITTERS.get(callee(node), len(node.args))
            if position < len(node.args):
                for argument in node.args[: position + 1]:
                    yield from branches(argument)
                for value in (*node.args[position + 1 :], *(keyword.value for keyword in node.keywords)):
                    yield from value.keys if isinstance(value, ast.Dict) else ()
            if callee(node) == "replace":
                yield from (keyword.value for keyword in node.keywords if keyword.arg == "kind")
            if callee(node) in ATTRIBUTE_READERS:
                yield from node.args[1:]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            if all(isinstance(target, ast.Name) and target.id.endswith("attrs") for target in node.targets):
                yield from node.value.keys
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[-1]).endswith(".attrs"):
            yield node.left


def is_kind(node: ast.AST) -> bool:
    """Whether an expression is called a kind: `kind`, `op.kind`."""
    return isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node).rpartition(".")[2] == "kind"


def inspected(tree: ast.AST) -> Iterator[ast.expr]:
    """Where a kind is compared with something that is no kind of act and no string, looked up in a set, or taken apart.

    Strings are found by what they are.
    """
    for node in nodes(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            one, other = node.left, node.comparators[0]
            if isinstance(node.ops[0], ast.Eq | ast.NotEq):
                sides = [side for side in (one, other) if not is_kind(side)]
                plain = all(isinstance(side, ast.Constant) or "ActKind." in ast.unparse(side) for side in sides)
                if len(sides) == 1 and not plain:
                    yield node
            elif not isinstance(node.ops[0], ast.Is | ast.IsNot):
                constant = isinstance(other, ast.Name) and other.id.isupper() and other.id != "REGISTRY"
                if (is_kind(one) and constant) or (is_kind(other) and not is_kind(one)):
                    yield node
        elif isinstance(node, ast.Subscript) and is_kind(node.value):
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TAKE_APART:
            yield from [node] * is_kind(node.func.value)


def known_kinds(tree: ast.AST) -> set[str]:
    """What a file says of the kinds of ops, other than what it emits."""
    legal = {id(node) for node in emitted(tree)}
    words = (node for node in nodes(tree) if isinstance(node, ast.Constant) and node.value in REGISTRY)
    return {repr(node.value) for node in words if id(node) not in legal} | {ast.unparse(n) for n in inspected(tree)}


@pytest.mark.parametrize(
    "source",
    [
        "op.kind == 'matmul'",
        "op.kind in ('add', other)",
        "PRODUCTS = frozenset({'matmul'})",
        "found = {'conv2d': 1}.get(op.kind)",
        "kinds.add('matmul')",
        "builder.add(name, 'add' if op.kind == 'matmul' else 'sub', x)",
        "op.kind.endswith('_tn')",
        "kind.partition('_')",
        "op.kind[:4] == 'conv'",
        "'matmul' in op.kind",
        "'grad' in op.kind",
        "op.kind in PRODUCTS",
        "op.kind == TO_HOST",
        "match op.kind:\n    case 'matmul':\n        pass",
    ],
)
def test_what_knows_a_kind_is_seen(source: str) -> None:
    assert known_kinds(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "builder.add(name, 'matmul', (x, w))",
        "x.apply('gelu', 'gelu', attrs={'scale': 1})",
        "Op(name, 'copy', (x,), (name,))",
        "replace(op, kind='concat')",
        "x.operate('exp' if up else 'log')",
        "'shift' in op.attrs and int_attr(op.attrs, 'shift')",
        "attrs = {'scale': 2, 'margin': 1}",
        "act.kind == ActKind.SLICE",
        "definition = REGISTRY[kind] if kind in REGISTRY else None",
    ],
)
def test_what_emits_an_op_may_name_its_kind(source: str) -> None:
    assert known_kinds(ast.parse(source)) == set()


def test_what_an_op_is_is_known_by_its_definition_alone() -> None:
    """Outside of the ops a kind is named where an op is emitted; exceptions are listed, and none is stale."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(("strategy/graph/ops/", *TRANSLATORS)):
            found[name] = known_kinds(parsed(path))
    unused = {(exception, word) for exception in KINDS_KNOWN for word in words_of(exception)}
    wrong = []
    for name, words in found.items():
        for word in sorted(words):
            reasons = {
                (e, word) for e in KINDS_KNOWN if fnmatchcase(name, e.partition(": ")[0]) and word in words_of(e)
            }
            unused -= reasons
            wrong += [] if reasons else [f"{name}: {word}"]
    assert wrong == []
    assert unused == set()
    assert len(KINDS_KNOWN) <= 10


def words_of(exception: str) -> list[str]:
    """What an exception allows: one expression, or several words or calls."""
    text = exception.partition(": ")[2]
    return [text] if " in " in text else text.split(" ")


NAME_PARSERS = frozenset(
    {"split", "rsplit", "partition", "rpartition", "startswith", "endswith", "removeprefix", "removesuffix", "replace"}
)
PARSED_NAMES = {
    "strategy/models/pretrained.py": "names in weight files, as their publishers chose them",
    "strategy/models/huggingface/weights.py": "likewise",
    "strategy/models/imported": "names in files of other frameworks, as their exporters chose them",
    "strategy/trainers": "names in files of other trainers, as their authors chose them",
    "strategy/plan/document_reader.py": "units at the end of the names of fields",
    "simulator/machine.py": "units at the end of the names of columns",
    "executor/checkpoint": "names of folders and files",
    "executor/supervision/heartbeat.py": "names of files",
    "experiments/published": "cells of published measurements",
}
"""Where what is called a name is taken apart and belongs to no op, value, register or actor, and what it is."""


def names_taken_apart(tree: ast.AST) -> list[int]:
    """Lines where a name is split, sliced, searched or matched against a regular expression."""
    return [node.lineno for node in nodes(tree) if isinstance(node, ast.expr) and _takes_name_apart(node)]


def _takes_name_apart(node: ast.expr) -> bool:
    match node:
        case ast.Call(ast.Attribute(ast.Name("re"), _), arguments):
            return any(map(_is_name, arguments))
        case ast.Call(ast.Attribute(_, "match" | "fullmatch" | "search" | "sub" | "findall"), arguments):
            return any(map(_is_name, arguments))
        case ast.Call(ast.Attribute(text, method)):
            return method in NAME_PARSERS and _is_name(text)
        case ast.Subscript(text, ast.Slice() | ast.Constant(int())):
            return _is_name(text)
        case ast.Compare(ast.Constant(str()), [operator], [text]):
            return not isinstance(operator, ast.Eq) and _is_name(text)
    return False


def _is_name(node: ast.expr) -> bool:
    """Whether an expression is called like the name of something; a part of one is one."""
    match node:
        case ast.Attribute(_, called) | ast.Name(called):
            return called in ("name", "origin", "parameter", "template", "repeats") or called.endswith("_name")
        case ast.Subscript(ast.Attribute(_, "inputs" | "outputs" | "updates")):
            return True
        case ast.Subscript(text, ast.Constant(int())) | ast.Call(ast.Attribute(text, _)):
            return _is_name(text)
    return False


def test_no_name_is_taken_apart() -> None:
    """What a name would tell of an op or a value is a field of it."""
    used, found = set(), []
    for path in SOURCES:
        where = path.relative_to(ROOT).as_posix()
        lines = names_taken_apart(parsed(path))
        known = next((start for start in PARSED_NAMES if where == start or where.startswith(f"{start}/")), None)
        if lines and known is not None:
            used.add(known)
        elif known is None:
            found += [f"{where}:{line}" for line in lines]
    assert found == []
    assert used == PARSED_NAMES.keys(), "an exception that nothing needs"


@pytest.mark.parametrize(
    "line",
    [
        'op.name.split(":", 1)[0]',
        "name.removeprefix(op.name)",
        'origin, _, part = op.name.partition(":")',
        'value.name.startswith("layers.")',
        'op.inputs[0].rpartition(".")',
        "name.replace(like.name, like.repeats, 1)",
        're.sub(pattern, ".*", name, count=1)',
        "PATTERN.fullmatch(actor.name)",
        "actor.name[0]",
        "name[3:]",
        '".mlp." in name',
    ],
)
def test_a_name_that_is_taken_apart_is_found(line: str) -> None:
    assert names_taken_apart(ast.parse(line)) != []


IMPORTED_AS = {"cupy-cuda13x": "cupy", "nvmath-python": "nvmath", "cuda-bindings": "cuda", "pyyaml": "yaml"}
STARTED = {"mpich", "ipykernel", "codespell", "coverage", "import-linter", "mypy", "ruff"}
PLUGINS = {
    *("mkdocs-material", "mkdocstrings", "pytest-timeout", "pytest-xdist", "onnxscript"),
    *("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13"),
}
"""Programs, the kernel of a notebook, plug-ins, and libraries with their headers: used without being imported."""


def test_every_extra_is_imported_by_something() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = {re.split(r"[\[>=]", line)[0] for lines in extras.values() for line in lines} - STARTED - PLUGINS
    missing = {IMPORTED_AS.get(name, name) for name in wanted}
    for path in (*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))):
        text = path.read_text()
        if any(name in text for name in missing):  # to parse all tests takes seconds
            missing -= set(imported_packages(parsed(path) if path in SOURCES else ast.parse(text)))
    assert sorted(missing) == []


def imported_packages(tree: ast.Module) -> Iterator[str]:
    """The first names of what a module imports, anywhere in it."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]


ROOMS_OF_USERS = (
    "experiments.verbs",
    "experiments.figures",
    "strategy.models",
    "strategy.graph.ops",
    "executor.runtime.kernels",
)
"""Packages whose modules are found by name: a verb, a figure, a model, an op, a backend."""
STARTS = (
    "experiments.entry",
    "experiments.__main__",
    "experiments.cli",
    "executor.frontend.graph",
    "executor.frontend.global_tensor",
    "experiments.planning.best_plan",
    "executor.exchange.horovod",
    *("executor.exchange.c_interface", "executor.exchange.c_interface.calls"),
)
"""The command, the front end, the search that programs pass to it, the exchange of a loop of one's own, and C's."""
RUN = (
    *("strategy.ilp.solve.warm", "strategy.layout.warm", "strategy.graph.warm", "simulator.warm"),
    "experiments.jobs.blocks",
    *("executor.exchange.c_interface.build", "executor.gpu_acceptance.__main__"),
    *("strategy.exports.applied", "strategy.exports.applied.dtensor", "strategy.exports.applied.jax_arrays"),
)
"""With `python -m`, by `make`, by the demo, by who writes C, and by `sbplan export`, which writes them out."""
PROOF = ("simulator.reference",)
"""What a compiled engine is proved equal to; its tests run it."""
TIMED = ("experiments.bench.simulator_bench",)
"""What a bench only times is not used by that."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_by(path: Path, known: set[str]) -> set[str]:
    """The modules of the house that a module imports anywhere, with the packages that they are in."""
    found: set[str] = set()
    for node in nodes(parsed(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            found.update(".".join(parts[: end + 1]) for end in range(len(parts)))
    return found & known


def test_no_modules_import_each_other_in_a_circle() -> None:
    """An import inside of a function is one, too: it hides a circle, and does not open it."""
    modules = {module_of(path): path for path in SOURCES}
    rooms = {name for name in modules if any(other.startswith(f"{name}.") for other in modules)}
    waiting = {name: imported_by(path, set(modules)) - rooms - {name} for name, path in modules.items()}
    while leaves := [name for name, uses in waiting.items() if not uses & waiting.keys()]:
        for name in leaves:
            del waiting[name]
    assert sorted(waiting) == []


def test_every_module_is_reached_by_a_user() -> None:
    """What only tests and benches import is a promise that nobody can call in."""
    modules = {module_of(path): path for path in SOURCES}
    uses = {name: imported_by(path, set(modules)) for name, path in modules.items()}
    starts = [*STARTS, *RUN, *PROOF]
    reached = {name for name in modules if name in starts or name.startswith(tuple(f"{r}." for r in ROOMS_OF_USERS))}
    waiting = [*reached, *(name for name in modules if name in PACKAGES or name.startswith("experiments.notebooks"))]
    reached.update(waiting)
    while waiting:
        name = waiting.pop()
        for other in uses[name] if name not in TIMED else ():
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    assert sorted(modules.keys() - reached) == []


def takes(tree: ast.Module, name: str) -> bool:
    """Whether a function, or a class by a field, takes a value of a type."""
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            annotations = [one.annotation for one in arguments if one.annotation is not None]
        elif isinstance(node, ast.ClassDef):
            annotations = [line.annotation for line in node.body if isinstance(line, ast.AnnAssign)]
        else:
            continue
        if name in map(ast.unparse, annotations):
            return True
    return False


def test_the_rooms_of_the_request_are_those_of_the_architecture() -> None:
    """Who takes the whole request where two of its values would do is seen, and has to say so there."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    told = text.partition("## Who is handed the request")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z/]+)` \| (.*) \|$", told, re.MULTILINE)
    listed = [f"strategy/{package}/{name}" for package, names in rows for name in re.findall(r"`(\w+\.py)`", names)]
    sources = [path for path in SOURCES if path.is_relative_to(ROOT / "strategy")]
    rooms = [path.relative_to(ROOT).as_posix() for path in sources if takes(parsed(path), "Request")]
    assert sorted(listed) == sorted(rooms)
    assert f"all of them, {len(rooms)}," in told


@pytest.mark.parametrize("taking", ["def f(a: Request) -> None: ...", "class C:\n    field: Request\n"])
def test_a_room_of_the_request_is_seen(taking: str) -> None:
    assert takes(ast.parse(taking), "Request")
    assert not takes(ast.parse(taking.replace("Request", "Pins")), "Request")


def test_training_imports_no_search() -> None:
    """Reading and checking a plan is what every rank begins with: what looks for plans would take as long again."""
    names = "{name.split('.')[1] for name in sys.modules if 'strategy.' in name}"
    code = f"import sys, experiments.jobs.training; print(*{names})"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"plan", "lowering"} <= set(ran.stdout.split())
    assert not {"search", "bounds", "ilp"} & set(ran.stdout.split())


TWICE: Mapping[str, str] = {
    "Graph": "users subclass the front end's; `strategy.graph` has what one is traced into",
}
"""A public class name that stands in several modules -> why it may."""


def public_classes(tree: ast.Module) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}


def test_a_class_name_is_one_thing() -> None:
    modules: dict[str, int] = {}
    for path in SOURCES:
        for name in public_classes(parsed(path)):
            modules[name] = modules.get(name, 0) + 1
    assert {name for name, count in modules.items() if count > 1} == set(TWICE)


CONSTANTS_TWICE: Mapping[str, str] = {
    "FOLDS": "cuts of two sets of measurements, of jobs and of kernels",
    "FORMAT": "versions of two file formats",
    "INFINITE": "a certificate is checked without the code that found it",
    "MIB": "a mebibyte: the simulator does not know of fits, nor fits of the simulator",
    "MIDDLE": "which run of layers, and which layer of a short model",
    "NAMED": "how many pins, and how many ranks, a message names",
    "ONE": "a dim that is broadcast, and one that is summed away",
    "PLAN": "two programs that are exported, each on its own",
    "POSITIVE": "from where the example operands of an op are drawn",
    "ROUNDS": "of two searches",
    "SCALAR": "the spec of an example operand",
    "T": "a type variable",
    "VERSION": "versions of two file formats",
}
"""A constant that stands with one name and value in several modules -> why it may."""


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and value, without a leading underscore."""
    for node in tree.body:
        match node:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                if name.strip("_").isupper():
                    yield name.strip("_"), ast.unparse(value)


def test_a_constant_stands_once() -> None:
    seen: set[tuple[str, str]] = set()
    twice: set[str] = set()
    for path in SOURCES:
        own = set(constants(parsed(path)))
        twice |= {name for name, _ in own & seen}
        seen |= own
    assert twice == set(CONSTANTS_TWICE)


NOT_OUR_WORDS = {
    *("apart", "by_hand", "case", "cases", "chase", "draft", "flat", "garbage", "halves", "laid", "levels"),
    *("passed", "place", "placed", "sharing", "shares", "skip", "unlisted", "verdict"),
}
"""Words of everyday life that once stood for a thing that has a name in the field."""
IN_PLACE = "in_place"
"""The field's own word, which is let through."""


def words_of_name(name: str) -> set[str]:
    """`OpCase` -> op, case; `plan_by_hand` -> plan, by, hand, and by_hand."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace(IN_PLACE, "").split("_")
    return {*parts, *map("_".join, itertools.pairwise(parts))}


def public_names(tree: ast.Module) -> Iterator[str]:
    """Classes, and functions and methods, that are not private; none inside a function."""
    waiting = list(tree.body)
    for node in waiting:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name
        if isinstance(node, ast.ClassDef):
            waiting += node.body


def test_names_are_words_of_the_field() -> None:
    found = []
    for path in SOURCES:
        where = path.relative_to(ROOT).as_posix()
        names = [path.stem, *public_names(parsed(path))]
        found += [f"{where}: {name}" for name in names if words_of_name(name) & NOT_OUR_WORDS]
    for path in (ROOT / "tests").rglob("*.py"):
        found += [path.relative_to(ROOT).as_posix()] if words_of_name(path.stem) & NOT_OUR_WORDS else []
    assert found == []


@pytest.mark.parametrize("name", ["Verdict", "OpCase", "solved_by_hand", "flat", "search_cases"])
def test_a_word_that_is_none_of_the_field_is_seen(name: str) -> None:
    assert words_of_name(name) & NOT_OUR_WORDS


MUTABLE = re.compile(r"(list|dict|set|defaultdict|OrderedDict|Counter|deque|bytearray|Mutable\w+)\b")


def changeable_fields(tree: ast.AST) -> Iterator[str]:
    """Fields of frozen dataclasses that hold what can change; what a callable takes is no field."""
    for node in nodes(tree):
        if isinstance(node, ast.ClassDef) and any("frozen=True" in ast.unparse(d) for d in node.decorator_list):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and any(
                    MUTABLE.fullmatch(kind) for kind in held_kinds(line.annotation)
                ):
                    yield f"{node.name}.{ast.unparse(line.target)}"


def held_kinds(annotation: ast.expr) -> Iterator[str]:
    """`Mapping[str, list[int]] | None` -> Mapping, str, list, int, None; a callable and an array are one word each."""
    if isinstance(annotation, ast.Subscript):
        outer = ast.unparse(annotation.value).rpartition(".")[2]
        yield outer
        if outer not in ("Callable", "NDArray", "ndarray", "ClassVar"):
            yield from held_kinds(annotation.slice)
    elif isinstance(annotation, ast.Tuple | ast.List):
        for element in annotation.elts:
            yield from held_kinds(element)
    elif isinstance(annotation, ast.BinOp):
        yield from (*held_kinds(annotation.left), *held_kinds(annotation.right))
    else:
        yield ast.unparse(annotation).rpartition(".")[2]


def id_calls(tree: ast.AST) -> list[int]:
    return [n.lineno for n in nodes(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "id"]


def test_values_are_values() -> None:
    """What is frozen cannot change inside, and nothing is told from another by its address."""
    found: list[str] = []
    for path in SOURCES:
        where, tree = path.relative_to(ROOT).as_posix(), parsed(path)
        found += [f"{where}: {field}" for field in changeable_fields(tree)]
        found += [f"{where}:{line}: id" for line in id_calls(tree)]
    assert found == []


@pytest.mark.parametrize(
    ("annotation", "changes"),
    [
        ("list[int]", True),
        ("dict[str, int] | None", True),
        ("Mapping[str, list[int]]", True),
        ("tuple[set[int], ...]", True),
        ("collections.deque[int]", True),
        ("Mapping[str, tuple[int, ...]]", False),
        ("Callable[[list[int]], dict[str, int]]", False),
        ("NDArray[np.int64]", False),
        ("frozenset[int]", False),
    ],
)
def test_a_field_that_can_change_is_seen(annotation: str, changes: bool) -> None:
    source = f"@dataclass(frozen=True, slots=True)\nclass Some:\n    field: {annotation}\n"
    assert list(changeable_fields(ast.parse(source))) == ["Some.field"] * changes
    assert list(changeable_fields(ast.parse(source.replace("frozen=True, ", "")))) == []
